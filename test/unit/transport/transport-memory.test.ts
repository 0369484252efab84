// What a connection takes, and that packets take nothing: no garbage per segment.
import assert from 'node:assert/strict';
import test from 'node:test';
import { readSettings } from 'weftline';
import { Engine } from '#lib/transport/engine/engine.js';
import type { TransportConnection } from '#lib/transport/engine/transport-engine.js';
import { MemoryPipe } from './support/memory-pipe.js';

test('a connection of 64 paths takes less than 1 MiB, whatever the window', () => {
  for (const transportWindowSegments of [4096, 8192]) {
    const pipe = new MemoryPipe({});
    const settings = readSettings({ transportWindowSegments, transportCongestionScope: 'path' }, {});
    const engine = new Engine({ io: pipe.a, settings });
    const count = 40;
    const ids = Array.from({ length: count }, () => engine.reserveConnectionId());
    const kept: TransportConnection[] = [];
    const before = bytesInUse();
    for (const localId of ids) {
      kept.push(
        engine.createConnection({
          localId,
          remoteId: 1,
          secret: 5n,
          peer: 0,
          peerName: 'rank 1',
          paths: 64,
          segmentBytes: 1368,
        }),
      );
      kept.at(-1)?.flush(3);
    }
    const each = (bytesInUse() - before) / count;
    assert.ok(each < 1_048_576, `${Math.round(each)} bytes per connection`);
    assert.equal(kept.length, count);
  }
});

test('segments leave no garbage', () => {
  const pipe = new MemoryPipe({ burstSegments: 44, paths: 4 });
  pipe.run(3000);
  const segments = (): number => pipe.sender.counters.sentSegments;
  const before = { heap: process.memoryUsage().heapUsed, segments: segments() };
  let least = Infinity;
  // A collection in between would show less than nothing; the growth of the quietest stretch counts otherwise.
  for (let stretch = 0; stretch < 5; stretch++) {
    const heap = process.memoryUsage().heapUsed;
    const from = segments();
    pipe.run(40);
    const grown = process.memoryUsage().heapUsed - heap;
    if (grown >= 0) least = Math.min(least, grown / (segments() - from));
  }
  assert.ok(segments() - before.segments > 20_000);
  assert.ok(least < 8, `${least} bytes of garbage per segment`);
});

function bytesInUse(): number {
  const { arrayBuffers, heapUsed } = process.memoryUsage();
  return arrayBuffers + heapUsed;
}
