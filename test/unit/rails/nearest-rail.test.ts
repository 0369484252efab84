import assert from 'node:assert/strict';
import test from 'node:test';
import { describePlan, planRails } from '#lib/rails/rail-list.js';
import { compareDistances, pciDeviceOf, pciDistance } from '#lib/rails/nearest-device.js';
import fc from '../../support/fast-check.ts';
import { type FakeHost, fakeHost } from './fake-host.ts';

function nearest(host: FakeHost, names: readonly string[] = Object.keys(host.nics), list = ''): readonly string[] {
  const interfaces = names.map((name, index) => ({ name, addresses: [`10.0.${index}.1`] }));
  const { gpus } = planRails(list, fakeHost(host), interfaces);
  return gpus.map(({ rail, distance }) =>
    distance === undefined ? 'none' : `${rail}: ${distance.relation}, ${distance.hops}`,
  );
}

const a = 'pci0000:00';
const b = 'pci0000:80';

test('an interface behind the switch of a GPU is nearer than one behind another bridge, and that one than another root', () => {
  const gpus = [`${a}/0000:00:01.0/0000:01:00.0/0000:02:00.0`, `${b}/0000:80:01.0/0000:81:00.0/0000:82:00.0`];
  const nics = {
    eth0: `${b}/0000:80:01.0/0000:81:01.0/0000:83:00.0`,
    eth1: `${a}/0000:00:01.0/0000:01:01.0/0000:03:00.0`,
    eth2: `${a}/0000:00:02.0/0000:04:00.0`,
  };
  assert.deepEqual(nearest({ gpus, nics }), ['eth1: same PCI switch, 4', 'eth0: same PCI switch, 4']);
  const { eth0, eth2 } = nics;
  assert.deepEqual(nearest({ gpus, nics: { eth0, eth2 } }), ['eth2: same PCI root, 5', 'eth0: same PCI switch, 4']);
  assert.deepEqual(nearest({ gpus, nics: { eth0 } }), ['eth0: other NUMA node, 8', 'eth0: same PCI switch, 4']);
});

test('between roots, the interface on the NUMA node of the GPU is nearer, however deep it lies', () => {
  const gpu = `${a}/0000:01:00.0`;
  const far = `${b}/0000:81:00.0`;
  const deep = 'pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0';
  const host = { gpus: [gpu], nics: { eth0: far, eth1: deep } };
  assert.deepEqual(nearest({ ...host, numaNodes: { [gpu]: 0, [far]: 1, [deep]: 0 } }), ['eth1: same NUMA node, 6']);
  assert.deepEqual(nearest({ ...host, numaNodes: { [gpu]: -1, [far]: -1, [deep]: -1 } }), ['eth0: other NUMA node, 4']);
});

test('GPUs that are equally near to several rails share them out', () => {
  const gpus = [1, 2, 3, 4].map((slot) => `${a}/0000:00:0${slot}.0`);
  const nics = { eth0: `${a}/0000:00:08.0/virtio3`, eth1: `${a}/0000:00:09.0/virtio4` };
  assert.deepEqual(
    nearest({ gpus, nics }).map((line) => line.slice(0, 4)),
    ['eth0', 'eth1', 'eth0', 'eth1'],
  );
  assert.deepEqual(nearest({ gpus: gpus.slice(0, 1), nics }, ['eth0', 'eth1'], 'eth1'), ['eth1: same PCI root, 2']);
});

test('a bond lies where the first interface below it lies, and interfaces without hardware are near to nothing', () => {
  const gpus = [`${a}/0000:00:01.0/0000:01:00.0`];
  const nics = { eth0: `${a}/0000:00:01.0/0000:02:00.0` };
  const lower = { 'bond0.7': ['bond0'], bond0: ['eth0'] };
  assert.deepEqual(nearest({ gpus, nics, lower }, ['bond0.7']), ['bond0.7: same PCI switch, 2']);
  assert.deepEqual(nearest({ gpus, nics, lower: { loop: ['loop'] } }, ['loop', 'veth0']), ['none']);
  const plan = planRails('', fakeHost({ gpus, nics }), [{ name: 'veth0', addresses: ['10.0.0.1'] }]);
  assert.deepEqual(describePlan(plan), [
    'veth0: 10.0.0.1, speed unknown, no PCI device',
    'GPU 0000:01:00.0: no rail has a PCI device',
  ]);
});

test('without interfaces or GPUs there is nothing to say', () => {
  const files = fakeHost({ gpus: [], nics: {} });
  assert.deepEqual(planRails('', files, []), { rails: [], gpus: [] });
  assert.deepEqual(planRails('', files, [{ name: 'lo', addresses: ['127.0.0.1'] }]), { rails: [], gpus: [] });
  assert.throws(() => planRails('eth7', files, []), { code: 'WL_CONFIG' });
});

function pathOf(steps: readonly number[], own: string): string {
  return [`pci0000:${steps[0]}0`, ...steps.slice(1).map((step, depth) => `0000:${depth + 1}${step}:00.0`), own].join(
    '/',
  );
}

function stepsOf(path: string): readonly string[] {
  return path.split('/').map((_, end, parts) => parts.slice(0, end + 1).join('/'));
}

test('of random trees, the nearest rail is the one of a slow reference', () => {
  const branch = fc.array(fc.integer({ min: 0, max: 2 }), { minLength: 2, maxLength: 5 });
  fc.assert(
    fc.property(branch, fc.array(branch, { minLength: 1, maxLength: 6 }), (gpuSteps, nicSteps) => {
      const gpu = pathOf(gpuSteps, '0000:f0:00.0');
      const nics = Object.fromEntries(
        nicSteps.map((steps, index) => [`eth${index}`, pathOf(steps, `0000:e${index}:00.0`)]),
      );
      const files = fakeHost({ gpus: [gpu], nics });
      // Nodes of the tree that only one of the two lies below; whole roots apart counts more than any depth.
      const apart = (path: string): number => {
        const [one, other] = [new Set(stepsOf(gpu)), new Set(stepsOf(path))];
        const common = [...one].filter((part) => other.has(part)).length;
        return one.size + other.size - 2 * common + (common === 0 ? 1000 : common === 1 ? 100 : 0);
      };
      const device = pciDeviceOf(files, '/sys/bus/pci/devices/0000:f0:00.0')!;
      const others = Object.keys(nics).map((name) => pciDeviceOf(files, `/sys/class/net/${name}/device`)!);
      for (const [index, other] of others.entries()) {
        const distance = pciDistance(device, other);
        assert.deepEqual(distance, pciDistance(other, device));
        for (const [second, third] of others.entries()) {
          const expected = Math.sign(apart(nics[`eth${index}`]!) - apart(nics[`eth${second}`]!));
          assert.equal(Math.sign(compareDistances(distance, pciDistance(device, third))), expected);
        }
      }
    }),
  );
});
