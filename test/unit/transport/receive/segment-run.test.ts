// Runs of segments in one received packet: headers that are what is expected join without a checksum, any other does not.
import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../../../support/fast-check.ts';
import {
  DATA_HEADER_BYTES,
  dataHeader,
  packetFlags,
  packetPrefix,
  TRANSPORT_VERSION,
} from '#lib/transport/wire/packet-layout.js';
import { extendRun, extendRunAlike, run, startRun } from '#lib/transport/receive/segment-run.js';
import { CRC32C_START, crc32cEnd, crc32cUpdate, WordChange } from '#lib/transport/wire/crc32c.js';

const { offset: AT } = dataHeader;

interface Joined {
  readonly count: number;
  readonly payloadBytes: number;
  readonly lastBytes: number;
  readonly offset: number;
  readonly sequence: number;
}

/** `count` segments of a write as the kernel joins them. */
function joined({ count, payloadBytes, lastBytes, offset, sequence }: Joined): DataView {
  const stride = DATA_HEADER_BYTES + payloadBytes;
  const view = new DataView(new ArrayBuffer((count - 1) * stride + DATA_HEADER_BYTES + lastBytes));
  for (let segment = 0; segment < count; segment += 1) {
    const at = segment * stride;
    const place = offset + segment * payloadBytes;
    const isLast = segment === count - 1;
    view.setUint8(at + AT.version, TRANSPORT_VERSION);
    view.setUint8(at + AT.kind, 1);
    view.setUint16(at + AT.flags, packetFlags.region | (isLast ? packetFlags.ackNow : 0), true);
    view.setUint16(at + AT.path, 3, true);
    view.setUint16(at + AT.length, isLast ? lastBytes : payloadBytes, true);
    view.setInt32(at + AT.sequence, sequence + segment, true);
    view.setInt32(at + AT.pathSequence, 7 * sequence + segment, true);
    view.setUint32(at + AT.target, 77, true);
    view.setUint32(at + AT.offset, place % 2 ** 32, true);
    view.setUint8(at + AT.offsetHigh, Math.floor(place / 2 ** 32));
    view.setUint32(at + AT.messageBytes, 0xffff_ffff, true);
    view.setUint8(at + AT.messageBytesHigh, 1);
  }
  return view;
}

/** How many segments join the first in one step. */
function joinAll(view: DataView, payloadBytes: number): number {
  const stride = DATA_HEADER_BYTES + payloadBytes;
  startRun(view, 0, stride);
  return extendRunAlike(new Int32Array(view.buffer, 0, view.byteLength >>> 2), stride, view.byteLength);
}

const packets = fc
  .record({
    count: fc.integer({ min: 2, max: 44 }),
    payloadBytes: fc.integer({ min: 1, max: 180 }).map((eighths) => eighths * 8),
    cut: fc.integer({ min: 0, max: 1000 }),
    offset: fc.integer({ min: 0, max: 2 ** 33 }),
    sequence: fc.constantFrom(0, 5, 0x7fff_fff0, -3),
  })
  .map(({ cut, ...fields }) => ({ ...fields, lastBytes: Math.max(1, fields.payloadBytes - cut) }));

test('segments that follow each other join in one step, as they do one by one', () => {
  fc.assert(
    fc.property(packets, (packet) => {
      const view = joined(packet);
      const { count, payloadBytes, lastBytes, offset } = packet;
      const inOneStep = joinAll(view, payloadBytes);
      // Where the low word of the place wraps, they are left to those who look at each.
      const wraps = (offset % 2 ** 32) + view.byteLength + payloadBytes >= 2 ** 32;
      if (!wraps) assert.equal(inOneStep, count - 1);
      for (let at = (inOneStep + 1) * run.stride; at < view.byteLength; at += run.stride) {
        assert.ok(extendRun(view, at));
      }
      assert.equal(run.count, count);
      assert.equal(run.lastPayloadBytes, lastBytes);
      assert.equal(run.flags & packetFlags.ackNow, packetFlags.ackNow);
    }),
  );
});

test('a header with one wrong bit does not join, unless the bit says nothing of the segment', () => {
  const bits = fc.nat(8 * DATA_HEADER_BYTES - 1);
  fc.assert(
    fc.property(packets, fc.nat(), bits, (packet, which, bit) => {
      const view = joined({ ...packet, offset: packet.offset % 2 ** 30 });
      const { payloadBytes, count } = packet;
      const wrong = 1 + (which % (count - 1));
      const at = wrong * (DATA_HEADER_BYTES + payloadBytes) + (bit >>> 3);
      view.setUint8(at, view.getUint8(at) ^ (1 << (bit & 7)));
      const field = bit >>> 3;
      const isChecksum = field >= packetPrefix.offset.checksum && field < packetPrefix.offset.checksum + 4;
      const isAckNow = field === AT.flags && 1 << (bit & 7) === packetFlags.ackNow;
      assert.equal(joinAll(view, payloadBytes), isChecksum || isAckNow ? count - 1 : wrong - 1);
    }),
  );
});

test('what a changed word does to a checksum is known without the other bytes', () => {
  const words = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 });
  fc.assert(
    fc.property(
      fc.uint8Array({ minLength: 64, maxLength: 64 }),
      fc.integer({ min: 0, max: 15 }),
      words,
      (bytes, word, value) => {
        const view = new DataView(bytes.buffer, bytes.byteOffset, 64);
        const sum = (): number => crc32cEnd(crc32cUpdate(CRC32C_START, view, 0, 64));
        const before = sum();
        const difference = view.getInt32(4 * word, true) ^ value;
        view.setInt32(4 * word, value, true);
        assert.equal(before ^ new WordChange(60 - 4 * word).of(difference), sum());
      },
    ),
  );
});
