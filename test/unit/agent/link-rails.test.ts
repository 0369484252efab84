import assert from 'node:assert/strict';
import test from 'node:test';
import { describeRails } from '#lib/agent/peer-links.js';
import { fakeHost } from '../rails/fake-host.ts';

test('a link names its rails, those of the peer, how they stand, and the GPUs that are nearest to each', () => {
  const [left, right] = ['pci0000:00/0000:00:01.0', 'pci0000:80/0000:80:01.0'];
  const files = fakeHost({
    gpus: [`${left}/0000:01:00.0`, `${right}/0000:81:00.0`],
    nics: { eth0: `${right}/0000:82:00.0`, eth1: `${left}/0000:02:00.0` },
  });
  const interfaces = [
    { name: 'eth0', addresses: ['10.0.0.1'] },
    { name: 'eth1', addresses: ['10.0.1.1'] },
  ];
  const isUp = { isUp: true, paths: 4, livePaths: 3 };
  const isDown = { isUp: false, paths: 4, livePaths: 0, deadSince: new Date(0) };
  const pairs = [
    { local: '10.0.0.1', remote: '10.0.0.2', ...isUp },
    { local: '10.0.1.1', remote: '10.0.1.2', ...isDown },
    { local: '10.0.9.1', remote: '10.0.9.2', ...isUp },
  ];
  assert.deepEqual(describeRails(pairs, files, interfaces), [
    { local: '10.0.0.1', remote: '10.0.0.2', ...isUp, name: 'eth0', gpus: ['0000:81:00.0'] },
    { local: '10.0.1.1', remote: '10.0.1.2', ...isDown, name: 'eth1', gpus: ['0000:01:00.0'] },
    // An interface that has lost its address since.
    { local: '10.0.9.1', remote: '10.0.9.2', ...isUp, gpus: [] },
  ]);
});
