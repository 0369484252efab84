// Messages over a lossless and a lossy network: every byte once, and both ends know.
import assert from 'node:assert/strict';
import test from 'node:test';
import { packetKinds, packetPrefix } from '#lib/transport/wire/packet-layout.js';
import { settingsTable } from '#lib/settings/settings.js';
import { requestStatus } from '#lib/transport/engine/transport-engine.js';
import { type Flying, isEnded, Loopback, type LoopbackOptions, pattern } from './support/loopback.js';

const AT = packetPrefix.offset;

function sendOne(options: LoopbackOptions, bytes: number): Loopback {
  const net = new Loopback(options);
  const from = net.a.region(bytes + 3);
  const to = net.b.region(bytes + 5);
  pattern(from.bytes);
  const receive = net.b.connection.postReceive({ region: to, offset: 5, bytes });
  const send = net.a.connection.postSend({ region: from, offset: 3, bytes });
  const done = net.run(() => isEnded(net.a, send) && isEnded(net.b, receive));
  assert.ok(done, `not done after ${net.now} us: ${JSON.stringify(net.a.connection.statistics)}`);
  assert.equal(net.a.engine.requestError(send), undefined);
  assert.equal(net.b.engine.poll(receive), requestStatus.done);
  assert.equal(net.b.engine.receivedBytes(receive), bytes);
  assert.deepEqual(Buffer.compare(to.bytes.subarray(5), from.bytes.subarray(3)), 0);
  return net;
}

test('a message of any size arrives', () => {
  for (const bytes of [0, 1, 64, 1303, 1304, 1305, 100_000, 3_000_000]) sendOne({}, bytes);
});

test('the first bytes of a message acknowledge the record that announced its receive', () => {
  const net = sendOne({ settings: { transportEagerBytes: 0 } }, 64);
  net.settle();
  const [sender, receiver] = [net.a.connection.statistics, net.b.connection.statistics];
  assert.equal(sender.sentAcks, 0, 'the data says it');
  assert.equal(receiver.sentAcks, 1);
  // The record, the data, the ack of the data: nothing is repeated.
  assert.equal(net.packets, 3);
});

test('if those bytes are lost, the record is repeated until an ack answers it', () => {
  let lost = 0;
  const lose = ({ bytes }: Flying): boolean => bytes[AT.kind] === packetKinds.data && lost++ < 3;
  const net = sendOne({ lose, settings: { transportMinRtoUs: 500, transportEagerBytes: 0 } }, 64);
  assert.ok(net.a.connection.statistics.sentAcks >= 1);
  net.settle();
});

test('joined packets arrive as runs', () => {
  const net = sendOne({ join: true }, 3_000_000);
  const { statistics } = net.a.connection;
  assert.equal(statistics.retransmittedSegments, 0);
  assert.equal(net.b.connection.statistics.receivedBytes, 3_000_000);
});

test('numbers wrap in the middle of messages, both ways at once, whatever the congestion control', () => {
  for (const end of [2n ** 31n, 2n ** 32n]) {
    for (const transportCongestion of settingsTable.transportCongestion.choices) {
      const secret = ((end - 40n) << 32n) | 5n;
      const settings = { transportCongestion, transportWindowSegments: 64, transportWindowBytes: 32_768 };
      const net = new Loopback({ secret, paths: 3, loss: 0.03, reordering: 0.1, duplication: 0.02, settings });
      const requests = [net.a, net.b].flatMap((side) => {
        const from = side.region(400_000);
        const to = side.other.region(400_000);
        pattern(from.bytes);
        return [0, 1, 2, 3].flatMap((flow) => {
          const place = { offset: 100_000 * flow, bytes: 100_000, flow };
          const receive = side.other.connection.postReceive({ ...place, region: to });
          const send = side.connection.postSend({ ...place, region: from });
          return [[side, send, from, to] as const, [side.other, receive, from, to] as const];
        });
      });
      const what = `${transportCongestion} from ${end}`;
      assert.ok(
        net.run(() => requests.every(([side, handle]) => isEnded(side, handle))),
        what,
      );
      for (const [side, handle, from, to] of requests) {
        assert.equal(side.engine.requestError(handle), undefined, what);
        assert.equal(Buffer.compare(from.bytes, to.bytes), 0, what);
      }
    }
  }
});

test('a message survives loss, duplication, reordering and corruption over several paths', () => {
  for (let seed = 1; seed <= 20; seed++) {
    const options = { seed, paths: 4, loss: 0.05, duplication: 0.05, reordering: 0.2, corruption: 0.02 };
    sendOne({ ...options, settings: { transportChecksum: 'full' } }, 400_000);
  }
});
