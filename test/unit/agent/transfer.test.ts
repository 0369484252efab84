// The end of a transfer whose device does not answer at once.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { LocalTransfer } from '#lib/agent/backends/local/local-transfer.js';
import { Transfer } from '#lib/agent/transfer.js';

type LocalParts = ConstructorParameters<typeof LocalTransfer>;

const late = (): WeftlineError => new WeftlineError('WL_TIMEOUT', 'the copies did not finish');

test('the release of copies that a device has not ended may be repeated, and keeps what tells of their end', async () => {
  let [tries, disposed] = [0, 0];
  const over = (): Promise<void> => (tries++ === 0 ? Promise.reject(late()) : Promise.resolve());
  const plan = { bytes: 8, isShort: true, over, close: () => disposed++ };
  const parts = { plan, locals: [], remotes: [] };
  const transfer = new LocalTransfer({ peerName: 'x' } as unknown as LocalParts[0], parts as unknown as LocalParts[1]);
  await assert.rejects(transfer.release(), { code: 'WL_TIMEOUT' });
  assert.deepEqual([tries, disposed], [1, 0]);
  assert.throws(() => transfer.post(), { code: 'WL_CLOSED' });
  await transfer.release();
  assert.deepEqual([tries, disposed], [2, 1]);
});

test('the close of a transfer may be repeated, and it takes no post meanwhile', async () => {
  let tries = 0;
  const release = (): Promise<void> => (tries++ === 0 ? Promise.reject(late()) : Promise.resolve());
  const parts = { number: 1, agent: 'a', operation: 'read', backend: 'local', peer: { name: 'b' } };
  const inner = { state: 'idle', release };
  const transfer = new Transfer({ ...parts, inner } as unknown as ConstructorParameters<typeof Transfer>[0]);
  await assert.rejects(Promise.all([transfer.close(), transfer.close()]), { code: 'WL_TIMEOUT' });
  assert.equal(tries, 1);
  assert.throws(() => transfer.post(), { code: 'WL_CLOSED' });
  await transfer.close();
  await transfer.close();
  assert.equal(tries, 2);
});
