// Random sends, writes, reads, signals and cancellations over a bad network: all end, and every byte is right.
import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../support/fast-check.ts';
import { congestionNames } from '#lib/congestion/congestion.js';
import { type EngineHandle, requestStatus } from '#lib/transport/engine/transport-engine.js';
import { isEnded, Loopback, pattern, type Side } from '../unit/transport/support/loopback.js';

const operation = fc.record({
  kind: fc.constantFrom('message', 'message', 'write', 'read', 'signal', 'flush', 'cancel', 'wait'),
  fromB: fc.boolean(),
  bytes: fc.oneof(fc.nat(3000), fc.nat(60_000)),
  flow: fc.nat(2),
  receiveFirst: fc.boolean(),
});

const network = fc.record({
  seed: fc.integer(),
  paths: fc.constantFrom(1, 2, 8, 64),
  burstSegments: fc.constantFrom(1, 7, 44),
  segmentBytes: fc.constantFrom(512, 1368, 8960),
  loss: fc.constantFrom(0, 0.01, 0.1),
  duplication: fc.constantFrom(0, 0.1),
  reordering: fc.constantFrom(0, 0.3),
  corruption: fc.constantFrom(0, 0.02),
  rate: fc.constantFrom(20, 1000),
  deadPath: fc.boolean(),
  join: fc.boolean(),
});

const rules = fc.record({
  transportCongestion: fc.constantFrom(...congestionNames),
  transportReceiverCredits: fc.boolean(),
  transportCongestionScope: fc.constantFrom('flow' as const, 'path' as const),
  transportCtsBytes: fc.constantFrom(4096, 65_536, 4_194_304),
  transportCtsChunkBytes: fc.constantFrom(1024, 10_000, 262_144),
  transportWindowBytes: fc.constantFrom(1024, 100_000, 2_097_152),
  transportWindowSegments: fc.constantFrom(64, 4096),
  transportAuthentication: fc.boolean(),
  transportEagerBytes: fc.constantFrom(0, 64, 1024, 8192),
});

test('whatever is asked ends, every byte is where it belongs, and nothing is left over', () => {
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 25 }), network, rules, (operations, options, settings) => {
      const { rate, deadPath, ...chances } = options;
      const net = new Loopback({
        ...chances,
        rate,
        queueBytes: 400_000,
        delay: (path) => 5 + (path % 5) * 3,
        settings: { ...settings, transportChecksum: 'full' },
      });
      if (deadPath && options.paths > 2) net.dead.add(1);
      const waits: [Side, EngineHandle][] = [];
      const checks: (() => void)[] = [];
      const sums = { a: 0, b: 0 };
      const cells = { a: net.a.region(8), b: net.b.region(8) };
      for (const { kind, fromB, bytes, flow, receiveFirst } of operations) {
        const from = fromB ? net.b : net.a;
        const to = from.other;
        const source = pattern(new Uint8Array(bytes), bytes);
        const target = new Uint8Array(bytes);
        const remote = { read: true, write: true };
        if (kind === 'message') {
          const out = from.engine.register({ bytes: source });
          const into = to.engine.register({ bytes: target });
          const send = () => waits.push([from, from.connection.postSend({ region: out, offset: 0, bytes, flow })]);
          if (!receiveFirst) send();
          waits.push([to, to.connection.postReceive({ region: into, offset: 0, bytes, flow })]);
          if (receiveFirst) send();
          checks.push(() => assert.deepEqual(target, source));
        } else if (kind === 'write' || kind === 'read') {
          const [there, here] = kind === 'write' ? [target, source] : [source, target];
          const region = to.engine.register({ bytes: there, remote });
          const local = from.engine.register({ bytes: here });
          const range = { region: local, offset: 0, bytes, flow };
          const where = { remoteRegion: region.id, remoteKey: region.key, remoteOffset: 0 };
          waits.push([from, from.connection[kind]({ ...range, ...where })]);
          checks.push(() => assert.deepEqual(target, source));
        } else if (kind === 'signal') {
          const cell = cells[to === net.a ? 'a' : 'b'];
          const where = { remoteRegion: cell.id, remoteKey: cell.key, remoteOffset: 0 };
          sums[to === net.a ? 'a' : 'b'] += bytes;
          waits.push([from, from.connection.signal({ ...where, add: bytes, flow })]);
        } else if (kind === 'flush') {
          waits.push([from, from.connection.flush(flow)]);
        } else if (kind === 'cancel') {
          const region = from.engine.register({ bytes: source });
          const handle = from.connection.postSend({ region, offset: 0, bytes, flow: 7 });
          net.run(() => false, bytes % 50);
          from.connection.cancel(handle);
        } else {
          net.run(() => false, bytes % 300);
        }
      }
      const done = net.run(() => waits.every(([side, handle]) => isEnded(side, handle)));
      assert.ok(done, `not done after ${net.now} us`);
      for (const [side, handle] of waits) {
        assert.equal(side.engine.requestError(handle), undefined);
        assert.equal(side.engine.poll(handle), requestStatus.done);
      }
      for (const check of checks) check();
      for (const name of ['a', 'b'] as const) {
        assert.equal(new DataView(cells[name].bytes.buffer).getUint32(0, true), sums[name]);
        const { admission } = net[name].engine;
        assert.deepEqual([admission.claimedBytes, admission.unclaimedBytes], [0, 0]);
      }
    }),
    { numRuns: 60 },
  );
});
