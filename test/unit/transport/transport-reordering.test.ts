// How much reordering a connection tolerates before it takes a segment for lost: more when it was wrong, less with time.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Connection } from '#lib/transport/engine/connection.js';
import { isEnded, Loopback } from './support/loopback.js';

test('the tolerance for reordering grows while segments arrive twice, and comes back when they do not', () => {
  let reordering = 0.5;
  const net = new Loopback({
    paths: 1,
    get reordering() {
      return reordering;
    },
  });
  const connection = net.a.connection;
  assert.ok(connection instanceof Connection);
  const [from, to] = [net.a.region(100_000), net.b.region(100_000)];
  const remote = { remoteRegion: to.id, remoteKey: to.key, remoteOffset: 0 };
  const write = (): void => {
    const handle = connection.write({ region: from, offset: 0, bytes: 100_000, ...remote });
    assert.ok(net.run(() => isEnded(net.a, handle)));
    net.a.engine.forget(handle);
  };
  const least = { segments: connection.send.tolerance.segments, share: connection.send.tolerance.share };
  for (let count = 0; count < 200; count++) write();
  const raised = { segments: connection.send.tolerance.segments, share: connection.send.tolerance.share };
  assert.ok(raised.segments > least.segments && raised.share > least.share, JSON.stringify(raised));
  reordering = 0;
  const shares: number[] = [];
  for (let quarter = 0; quarter < 40; quarter++) {
    net.run(() => false, 100_000);
    write();
    shares.push(connection.send.tolerance.share);
  }
  assert.deepEqual(
    shares,
    shares.toSorted((a, b) => b - a),
  );
  assert.deepEqual({ segments: connection.send.tolerance.segments, share: connection.send.tolerance.share }, least);
});
