import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { join } from 'weftline/world';

const nativeLibraryIsLoaded = () => /koffi[^\n]*\.node/.test(readFileSync('/proc/self/maps', 'utf8'));

test('join() without a launcher is a world of one rank, without sockets, threads and native libraries', async () => {
  const world = await join({ environment: {} });
  const { rank, size, localRank, localSize, nodeRank, nodeCount, localRanks } = world;
  assert.deepEqual(
    { rank, size, localRank, localSize, nodeRank, nodeCount, localRanks },
    { rank: 0, size: 1, localRank: 0, localSize: 1, nodeRank: 0, nodeCount: 1, localRanks: [0] },
  );
  assert.match(world.jobId, /^[a-z0-9]{1,32}$/);
  await world.barrier('b');
  assert.deepEqual(await world.allGather('g', { a: 1 }), [{ a: 1 }]);
  assert.equal(await world.store.add('n', 2), 2);
  await assert.rejects(world.store.get('never', { timeoutMs: 1 }), { code: 'WL_TIMEOUT' });
  const resources = process.getActiveResourcesInfo().filter((name) => /TCP|MessagePort|Worker/.test(name));
  assert.deepEqual(resources, []);
  if (process.platform === 'linux') assert.ok(!nativeLibraryIsLoaded());
  const pending = assert.rejects(world.store.get('never'), { code: 'WL_CLOSED' });
  await world.close();
  await world.close();
  await pending;
  await assert.rejects(world.barrier('b'), { code: 'WL_CLOSED' });
});

test('any number of objects may listen for lost peers', async () => {
  await using world = await join({ environment: {} });
  const warnings: string[] = [];
  const note = (warning: Error): number => warnings.push(warning.name);
  process.on('warning', note);
  for (let index = 0; index < 12; index++) world.peerLost.addEventListener('abort', () => index);
  await new Promise((resolve) => setImmediate(resolve));
  process.off('warning', note);
  assert.deepEqual(warnings, []);
});

test('two worlds of one have different job ids, settings come from the given environment', async () => {
  await using first = await join({ environment: { WEFTLINE_TIMEOUT_MS: '5' } });
  await using second = await join({ environment: { WEFTLINE_TIMEOUT_MS: '5' }, settings: { timeoutMs: 7 } });
  assert.notEqual(first.jobId, second.jobId);
  assert.match(first.secret, /^[0-9a-f]{64}$/);
  assert.notEqual(first.secret, second.secret);
  assert.deepEqual([first.settings.timeoutMs, second.settings.timeoutMs], [5, 7]);
  await assert.rejects(first.store.get('k'), { message: /after 5 ms/ });
  await assert.rejects(join({ environment: { WEFTLINE_TIMEOUT_MS: 'soon' } }), { code: 'WL_CONFIG' });
});

test('ranks that would meet at an address of other hosts need a token', async () => {
  const ranks = { WORLD_SIZE: '2', MASTER_ADDR: '192.0.2.1', MASTER_PORT: '29500' };
  for (const RANK of ['0', '1']) {
    await assert.rejects(join({ environment: { ...ranks, RANK }, timeoutMs: 100 }), {
      code: 'WL_CONFIG',
      message: /WEFTLINE_TOKEN is missing: ranks meet at 192\.0\.2\.1.*openssl rand -hex 32/,
    });
  }
});

test('the setting hosts comes from the environment, where agents read it too, and needs as many ranks', async () => {
  await assert.rejects(join({ environment: {}, settings: { hosts: '2' } }), {
    code: 'WL_CONFIG',
    message: /^Invalid setting hosts: got "2" from join\(\), expected "1"; set WEFTLINE_HOSTS in the environment/,
  });
  await assert.rejects(join({ environment: { WEFTLINE_HOSTS: '2' } }), {
    code: 'WL_CONFIG',
    message: /expected 1, as this machine has one rank, got "2"$/,
  });
});

test('a world of one rank gives groups of one rank', async () => {
  await using world = await join({ environment: {} });
  const group = await world.group([0]);
  const again = await world.split({ color: 'a' });
  assert.deepEqual([group.ranks, group.rank, group.size, group.worldRank, group.machineRank], [[0], 0, 1, 0, 0]);
  await group.store.setJson('key', 1);
  await again.store.setJson('key', 2);
  assert.deepEqual([await group.store.getJson('key'), await again.store.getJson('key')], [1, 2]);
  assert.equal(await world.split({ color: undefined }), undefined);
  for (const ranks of [[], [1], [0, 0], [0.5], 'all' as unknown as number[]]) {
    await assert.rejects(world.group(ranks), {
      code: 'WL_INVALID_ARGUMENT',
      message: /^Invalid ranks: expected ranks from 0 to 0/,
    });
  }
  await assert.rejects(world.split({ color: 1.5 }), { code: 'WL_INVALID_ARGUMENT', message: /^Invalid color/ });
  const mistyped = { color: 1, keys: 2 };
  await assert.rejects(world.split(mistyped), { code: 'WL_INVALID_ARGUMENT', message: /did you mean key\?/ });
  await world.close();
  await assert.rejects(group.barrier('b'), { code: 'WL_CLOSED' });
});

test('the rails of a rank are the interfaces that its setting names', async () => {
  await using none = await join({ environment: {} });
  assert.deepEqual(none.topology.rails, []);
  await using some = await join({ environment: { WEFTLINE_TRANSPORT_RAILS: '127.0.0.2,127.0.0.1' } });
  assert.deepEqual(some.topology.rails, ['lo', 'lo']);
  const wrong = join({ environment: { WEFTLINE_TRANSPORT_RAILS: '=no-such-rail' } });
  await assert.rejects(wrong, { code: 'WL_CONFIG', message: /not "no-such-rail"/ });
});
