// The kernel that tags packets: published vectors, a plain reference, packets in one piece and in two.
import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../../support/fast-check.ts';
import { packetKey } from '#lib/abi/cpu-kernels.js';
import { authenticPrefix } from '#lib/transport/wire/packet-layout.js';
import { instantiateKernelsNow, wasm } from '#lib/device/cpu/kernels.js';
import {
  fromHex,
  littleEndian,
  nh,
  number,
  poly1305,
  referenceTag,
  sipHash,
} from '../../support/packet-tag-reference.js';

const memory = new wasm.Memory({ initial: 8, maximum: 8, shared: true });
const kernels = instantiateKernelsNow(memory);
const bytes = new Uint8Array(memory.buffer);
const [KEY, OTHER_KEY, PACKET, BODIES, OUT] = [65_536, 70_000, 131_072, 262_144, 400_000];

function toHex(address: number, length: number): string {
  return Buffer.from(bytes.slice(address, address + length)).toString('hex');
}

test('SipHash-2-4: vectors of its paper and reference implementation', () => {
  const key = Uint8Array.from({ length: 16 }, (_, index) => index);
  bytes.set(key, KEY);
  const expected = new Map([
    [0, '310e0edd47db6f72'],
    [1, 'fd67dc93c539f874'],
    [2, '5a4fa9d909806c0d'],
    [8, '6224939a79f5f593'],
    [15, 'e545be4961ca29a1'],
  ]);
  for (const [length, hash] of expected) {
    const message = Uint8Array.from({ length }, (_, index) => index);
    bytes.set(message, PACKET);
    kernels.sipHash(KEY, PACKET, length, OUT);
    assert.equal(toHex(OUT, 8), hash, `${length} bytes`);
    assert.equal(sipHash(key, message), number(fromHex(hash)), `reference, ${length} bytes`);
  }
});

test('Poly1305, the reference: the vector of RFC 8439, section 2.5.2', () => {
  const key = fromHex('85d6be7857556d337f4452fe42d506a8');
  const pad = number(fromHex('0103808afb0db2fd4abff6af4149f51b'));
  const sum = poly1305(key, Buffer.from('Cryptographic Forum Research Group'));
  assert.deepEqual(littleEndian(sum + pad, 16), fromHex('a8061dc1305136c6c22b8baf0c0127a9'));
});

test('NH and NHPoly1305, the references: the vectors of 16 bytes that Adiantum publishes, with four passes', () => {
  // A message of 16 bytes uses the first 64 bytes of the key of NH.
  const nhKey = fromHex(
    '225b80c81805370976144b67c4507f2b2cff56c5d566456835e6d29ae5d0c1fbac59811a60b03d814ba35ba9ccb3fe2dc24dd926ad36cf8c05113b8a991581c8',
  );
  const sums = '41d9ad545a0dcc5348f64c75435ddd77daca7dec913b53165c4b58dc700a7b37';
  assert.deepEqual(nh(nhKey, fromHex('d382e70435ccf7a4f9b2c5ed5ad958eb'), 4), fromHex(sums));
  const polyKey = fromHex('292143cbcb1307debf48df8a7fa284de');
  const otherKey = fromHex(
    '72239df5f007f24c203a93b9cd5dfecb992c2b58c6505f9456c37c0d023fb85e7bc06c513476c00ec622c89e92a021c9855c7cf8e26447c9e4a25793f8a269cd',
  );
  const hash = poly1305(polyKey, nh(otherKey, fromHex('bcda81a878791cbf7753ba4c305bb833'), 4));
  assert.deepEqual(littleEndian(hash, 16), fromHex('04bf7f6ace72ea6a79dbb0c960f612cc'));
});

test('a hash that needs the last reduction, and messages around each border of NH and of a step', () => {
  const ones = new Uint8Array(packetKey.size).fill(255);
  const key = Uint8Array.from({ length: packetKey.size }, (_, index) => (index * 89 + (index >> 3)) & 255);
  const lengths = [0, 1, 8, 15, 16, 17, 24, 63, 64, 65, 79, 80, 1008, 1023, 1024, 1025, 1040, 2047, 2048, 2049, 4096];
  for (const [which, fill] of [
    [key, 0],
    [key, 255],
    [ones, 255],
    [ones, 0],
  ] as const) {
    for (const length of lengths) {
      const message = new Uint8Array(length).fill(fill);
      bytes.set(which, KEY);
      bytes.set(message, PACKET);
      bytes.fill(0x5a, PACKET + length, PACKET + length + 64);
      kernels.packetHash(KEY, PACKET, length, OUT);
      const { nh: nhAt, poly, sip } = packetKey.offset;
      const hash = poly1305(which.subarray(poly, sip), nh(which.subarray(nhAt, poly), message));
      assert.equal(number(bytes.slice(OUT, OUT + 16)), BigInt.asUintN(128, hash), `${length} bytes of ${fill}`);
    }
  }
});

/** As the kernel takes numbers of packets. */
function halves(value: bigint): [number, number] {
  return [Number(value & 0xffff_ffffn), Number(value >> 32n)];
}

const keys = fc.uint8Array({ minLength: packetKey.size, maxLength: packetKey.size });

test('tagPackets() and isTagged() agree with the reference, whole or cut into header and payload', () => {
  fc.assert(
    fc.property(
      keys,
      fc.record({
        headBytes: fc.constantFrom(32, 48, 64, 128, 1024, 1040),
        bodyBytes: fc.integer({ min: 0, max: 3000 }),
        first: fc.bigInt({ min: 0n, max: 2n ** 53n - 10n }),
      }),
      fc.integer({ min: 0, max: 3000 }),
      (key, { headBytes, bodyBytes, first }, seed) => {
        const count = 3;
        const lastBytes = seed % (bodyBytes + 1);
        bytes.set(key, KEY);
        const head = Uint8Array.from({ length: headBytes }, (_, index) => (index * seed + 3) & 255);
        head.fill(0, authenticPrefix.offset.tagLow, authenticPrefix.offset.number);
        const body = Uint8Array.from({ length: count * bodyBytes }, (_, index) => (index * 7 + seed) & 255);
        for (let packet = 0; packet < count; packet++) bytes.set(head, PACKET + packet * headBytes);
        bytes.set(body, BODIES);
        kernels.tagPackets(KEY, PACKET, headBytes, BODIES, bodyBytes, lastBytes, count, ...halves(first), OUT);
        const tags = bytes.slice(OUT, OUT + 8 * count);
        for (let packet = 0; packet < count; packet++) {
          const length = packet === count - 1 ? lastBytes : bodyBytes;
          const whole = Buffer.concat([head, body.subarray(packet * bodyBytes, packet * bodyBytes + length)]);
          const tag = tags.subarray(8 * packet, 8 * packet + 8);
          const its = first + BigInt(packet);
          assert.equal(number(tag), referenceTag(key, whole, its));
          whole.set(tag, authenticPrefix.offset.tagLow);
          // Anywhere: received packets begin at any byte.
          const at = PACKET + (seed % 17);
          bytes.set(whole, at);
          assert.equal(kernels.isTagged(KEY, at, whole.length, ...halves(its)), 1);
          bytes.set(whole, at);
          assert.equal(kernels.isTagged(KEY, at, whole.length, ...halves(its + 1n)), 0);
          bytes.set(whole, at);
          assert.equal(kernels.isTagged(KEY, at, whole.length, ...halves(its + 2n ** 32n)), 0);
        }
      },
    ),
    { numRuns: 60 },
  );
});

test('another key, or a zero at the end more or less, is another tag', () => {
  const key = Uint8Array.from({ length: packetKey.size }, (_, index) => (index * 31) & 255);
  bytes.set(key, KEY);
  bytes.set(key, OTHER_KEY);
  bytes[OTHER_KEY + packetKey.offset.sip] = 1;
  bytes.fill(0, PACKET, PACKET + 128);
  kernels.tagPackets(KEY, PACKET, 64, BODIES, 0, 0, 1, 5, 0, OUT);
  const tag = bytes.slice(OUT, OUT + 8);
  const isTagged = (which: number, length: number): number => {
    bytes.set(tag, PACKET + authenticPrefix.offset.tagLow);
    return kernels.isTagged(which, PACKET, length, 5, 0);
  };
  assert.deepEqual([isTagged(KEY, 64), isTagged(KEY, 63), isTagged(KEY, 65), isTagged(OTHER_KEY, 64)], [1, 0, 0, 0]);
});
