// What commands of one request become at its channel: sums of a sole writer, words of channels that only add, and limits.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { BackendChannel, BackendRegion, BackendRemoteRegion } from '#lib/agent/backend.js';
import { AgentRoute } from '#lib/device-api/service/agent-route.js';

const region = {} as BackendRegion & BackendRemoteRegion;
const HIGHEST = 2 ** 32 - 1;

function makeRoute(isSoleWriter: boolean) {
  const log: string[] = [];
  const channel: BackendChannel = {
    posted: 0,
    delivered: 0,
    error: undefined,
    put: () => true,
    signal: (_remote, offset, add, sum) => log.push(`${offset} + ${add} = ${sum ?? 'unknown'}`) > 0,
    close: () => Promise.resolve(),
  };
  const place = { local: region, localOffset: 0, remote: region, remoteOffset: 0, bytes: 0 };
  const range = { offset: 0, bytes: 64, range: { region: 0, offset: 128, bytes: 64 }, isSoleWriter };
  return { log, route: new AgentRoute({ channel, place, staged: undefined }, range) };
}

test('a sole writer knows the sums, and epochs of words become additions where a channel cannot store', () => {
  const { log, route } = makeRoute(true);
  route.signal(8, 3);
  route.signal(8, 4);
  route.set(24, 5, 0);
  route.set(24, 0, 1);
  assert.deepEqual(log, ['136 + 3 = 3', '136 + 4 = 7', '152 + 5 = unknown', `152 + ${HIGHEST - 4} = unknown`]);
  assert.throws(() => route.set(24, HIGHEST, 0), { code: 'WL_INVALID_ARGUMENT', message: /not less than the last/ });
});

test('what would not be added exactly is refused: a negative number of the device, and sums from 2^53 on', () => {
  for (const isSole of [false, true]) {
    const { log, route } = makeRoute(isSole);
    const refusal = { code: 'WL_INVALID_ARGUMENT', message: /below 2\^53/ };
    assert.throws(() => route.signal(0, HIGHEST * 2 ** 32 + HIGHEST), refusal);
    assert.throws(() => route.signal(0, 2 ** 53), refusal);
    assert.throws(() => route.signal(64, 1), { code: 'WL_INVALID_ARGUMENT' });
    assert.deepEqual(log, []);
  }
  const { route } = makeRoute(true);
  assert.ok(route.signal(0, Number.MAX_SAFE_INTEGER));
  assert.throws(() => route.signal(0, 1), { code: 'WL_INVALID_ARGUMENT' });
});
