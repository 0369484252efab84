// Late events: timers of messages that have ended, and packets for requests whose slots others have taken. A retransmission
// that reads an entry of the dead, or a packet that completes what nobody waits for, would crash a program in native code.
import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../support/fast-check.ts';
import type { Region } from '#lib/transport/engine/region.js';
import type { EngineHandle } from '#lib/transport/engine/transport-engine.js';
import { isEnded, Loopback, pattern, type Side } from '../unit/transport/support/loopback.js';

const MESSAGE_BYTES = 20_000;
const PATHS = 3;

const action = fc.record({
  what: fc.constantFrom(
    'send',
    'send',
    'write',
    'receive',
    'cancel',
    'release',
    'forget',
    'blackout',
    'light',
    'run',
    'run',
  ),
  which: fc.nat(30),
  bytes: fc.oneof(fc.nat(1000), fc.nat(MESSAGE_BYTES)),
  /** Beyond the retransmission timeouts, and now and then beyond the end of connections. */
  microseconds: fc.constantFrom(20, 3000, 50_000, 700_000),
});

interface Posted {
  readonly side: Side;
  readonly handle: EngineHandle;
  readonly region: Region;
}

/** Everything that `side` sends out of memory, looked at as it goes. */
function watch(side: Side): { readonly released: Set<Region> } {
  const released = new Set<Region>();
  const send = side.send.bind(side);
  side.send = (burst) => {
    if (burst.region !== undefined) assert.ok(!released.has(burst.region), 'a burst of memory that was given back');
    send(burst);
  };
  return { released };
}

test('no timer sends what has ended: not of released memory, not after a cancellation, not after the connection', () => {
  fc.assert(
    fc.property(
      fc.array(action, { maxLength: 60 }),
      fc.integer(),
      fc.boolean(),
      (actions, seed, transportAuthentication) => {
        const settings = { transportGiveUpMs: 1500, transportAuthentication };
        const net = new Loopback({ seed, paths: PATHS, loss: 0.05, reordering: 0.1, settings });
        const { released } = watch(net.a);
        const target = net.b.region(MESSAGE_BYTES);
        const posted: Posted[] = [];
        for (const { what, which, bytes, microseconds } of actions) {
          const chosen = posted[which % Math.max(1, posted.length)];
          if (net.a.connection.error !== undefined) break;
          if (what === 'send' || what === 'write') {
            const region = net.a.region(MESSAGE_BYTES);
            const place = { region, offset: 0, bytes };
            const remote = { remoteRegion: target.id, remoteKey: target.key, remoteOffset: 0 };
            const { connection } = net.a;
            const handle = what === 'send' ? connection.postSend(place) : connection.write({ ...place, ...remote });
            posted.push({ side: net.a, handle, region });
          } else if (what === 'receive') {
            const region = net.b.region(MESSAGE_BYTES);
            const handle = net.b.connection.postReceive({ region, offset: 0, bytes: MESSAGE_BYTES });
            posted.push({ side: net.b, handle, region });
          } else if (what === 'blackout' || what === 'light') {
            for (let path = 0; path < PATHS; path++) net.dead[what === 'light' ? 'delete' : 'add'](path);
          } else if (what === 'run') {
            net.run(() => false, microseconds);
          } else if (chosen !== undefined) {
            if (what === 'cancel') chosen.side.connection.cancel(chosen.handle);
            else if (what === 'forget') chosen.side.engine.forget(chosen.handle);
            else if (!released.has(chosen.region)) {
              chosen.side.engine.release(chosen.region);
              released.add(chosen.region);
            }
          }
        }
        net.run(() => false, 100_000);
        for (const side of [net.a, net.b]) side.connection.close();
        net.settle();
        for (const { side, handle } of posted) assert.ok(isEnded(side, handle));
      },
    ),
    { numRuns: 400 },
  );
});

test('packets of messages that are over complete nothing and write nowhere, whoever has their slots now', () => {
  fc.assert(
    fc.property(fc.integer(), fc.array(fc.nat(), { minLength: 1, maxLength: 80 }), (seed, replays) => {
      const sent: Uint8Array[] = [];
      const net = new Loopback({
        seed,
        paths: PATHS,
        settings: { transportEagerBytes: 1024 },
        lose: ({ to, bytes }) => {
          if (to === net.b) sent.push(bytes);
          return false;
        },
      });
      const old = net.b.region(4 * MESSAGE_BYTES);
      const from = net.a.region(MESSAGE_BYTES);
      pattern(from.bytes, seed);
      for (const [turn, bytes] of [MESSAGE_BYTES, 100, MESSAGE_BYTES, 5000].entries()) {
        const receive = net.b.connection.postReceive({
          region: old,
          offset: turn * MESSAGE_BYTES,
          bytes: MESSAGE_BYTES,
        });
        const send = net.a.connection.postSend({ region: from, offset: 0, bytes });
        // The third is cancelled on its way, at both ends, wherever it is.
        if (turn === 2) {
          net.run(() => sent.length > 25, 1000);
          net.b.connection.cancel(receive);
          net.a.connection.cancel(send);
        }
        assert.ok(net.run(() => isEnded(net.b, receive) && isEnded(net.a, send)));
        net.b.engine.forget(receive);
        net.a.engine.forget(send);
      }
      net.settle();
      old.bytes.fill(0x5a);
      // New receives take the slots of the old ones; nothing was sent to them.
      const memory = net.b.region(4 * MESSAGE_BYTES);
      memory.bytes.fill(0xa5);
      const fresh = [0, 1, 2, 3].map((turn) =>
        net.b.connection.postReceive({ region: memory, offset: turn * MESSAGE_BYTES, bytes: MESSAGE_BYTES }),
      );
      for (const which of replays) {
        net.receive(net.b, sent[which % sent.length] as Uint8Array);
        net.now += 11;
        net.b.engine.onTimer(net.now);
      }
      net.run(() => false, 100_000);
      for (const handle of fresh) assert.ok(!isEnded(net.b, handle));
      assert.ok(old.bytes.every((byte) => byte === 0x5a));
      assert.ok(memory.bytes.every((byte) => byte === 0xa5));
      // And they still work.
      const send = net.a.connection.postSend({ region: from, offset: 0, bytes: MESSAGE_BYTES });
      assert.ok(net.run(() => isEnded(net.a, send) && isEnded(net.b, fresh[0] as EngineHandle)));
      assert.deepEqual(memory.bytes.subarray(0, MESSAGE_BYTES), from.bytes);
    }),
    { numRuns: 60 },
  );
});
