// Commands arrive at the engine as they were put, to the largest values that they can hold.
import assert from 'node:assert/strict';
import test from 'node:test';
import { engineCommandKinds, PART_BYTES } from '#lib/transport/engine-commands.js';
import { MAX_MESSAGE_BYTES } from '#lib/transport/wire/packet-layout.js';
import { CommandRing, EngineCommand } from '#lib/transport/host/command-ring.js';

test('a part of a request of more than 4 GiB begins where it was cut', () => {
  const user = new CommandRing();
  const engine = new CommandRing(user.buffer);
  const last = Math.floor(MAX_MESSAGE_BYTES / PART_BYTES) * PART_BYTES;
  for (const partOffset of [0, PART_BYTES, 2 ** 32 - PART_BYTES, 2 ** 32, 2 ** 33 + PART_BYTES, last]) {
    const put = Object.assign(new EngineCommand(), {
      kind: engineCommandKinds.write,
      slot: 4095,
      connection: 7,
      region: 2 ** 32 - 1,
      flow: 65_535,
      remoteRegion: 3,
      remoteKey: 2 ** 32 - 1,
      partOffset,
      offset: partOffset + 5,
      bytes: PART_BYTES,
      remoteOffset: 2 ** 48 - 1,
      add: MAX_MESSAGE_BYTES,
    });
    user.put(put);
    const taken = new EngineCommand();
    assert.ok(engine.take(taken));
    assert.deepEqual(taken, put);
  }
});
