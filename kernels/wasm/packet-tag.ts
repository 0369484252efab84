// Keyed tags of packets: SipHash-2-4 of a universal hash of the packet, its number and its length. The hash is built as
// Adiantum's NHPoly1305: NH condenses each kilobyte to 16 bytes with SIMD products, and Poly1305 takes those in. NH has two
// passes here: two packets collide with a chance of 2^-64, as small as that of guessing a tag.
import { PACKET_KEY_POLY, PACKET_KEY_SIP } from 'abi';

/** NH starts its key anew after this many bytes; a step takes 16. */
const NH_BYTES: usize = 1024;
/** Offset and size of the tag in a packet: packetPrefix of src/transport/wire/packet-layout.ts. */
const TAG: usize = 8;
const TAG_BYTES: usize = 8;

/** What the tag is made of: 16 bytes of hash, the number and the length of the packet. */
const digest: usize = memory.data(32, 16);
/** The last bytes of a packet, padded with zeros. */
const tail: usize = memory.data(16, 16);

/** Accumulator and multiplier of Poly1305, in limbs of 26 bits. */
let h0: u64 = 0;
let h1: u64 = 0;
let h2: u64 = 0;
let h3: u64 = 0;
let h4: u64 = 0;
let r0: u64 = 0;
let r1: u64 = 0;
let r2: u64 = 0;
let r3: u64 = 0;
let r4: u64 = 0;

const LIMB: u64 = 0x3ffffff;

function polyStart(key: usize): void {
  const low = load<u64>(key) & 0x0ffffffc0fffffff;
  const high = load<u64>(key, 8) & 0x0ffffffc0ffffffc;
  r0 = low & LIMB;
  r1 = (low >>> 26) & LIMB;
  r2 = ((low >>> 52) | (high << 12)) & LIMB;
  r3 = (high >>> 14) & LIMB;
  r4 = high >>> 40;
  h0 = 0;
  h1 = 0;
  h2 = 0;
  h3 = 0;
  h4 = 0;
}

/** Takes in 16 bytes. */
function polyBlock(low: u64, high: u64): void {
  const a0 = h0 + (low & LIMB);
  const a1 = h1 + ((low >>> 26) & LIMB);
  const a2 = h2 + (((low >>> 52) | (high << 12)) & LIMB);
  const a3 = h3 + ((high >>> 14) & LIMB);
  const a4 = h4 + ((high >>> 40) | (1 << 24));
  const s1 = r1 * 5;
  const s2 = r2 * 5;
  const s3 = r3 * 5;
  const s4 = r4 * 5;
  const d0 = a0 * r0 + a1 * s4 + a2 * s3 + a3 * s2 + a4 * s1;
  const d1 = a0 * r1 + a1 * r0 + a2 * s4 + a3 * s3 + a4 * s2 + (d0 >>> 26);
  const d2 = a0 * r2 + a1 * r1 + a2 * r0 + a3 * s4 + a4 * s3 + (d1 >>> 26);
  const d3 = a0 * r3 + a1 * r2 + a2 * r1 + a3 * r0 + a4 * s4 + (d2 >>> 26);
  const d4 = a0 * r4 + a1 * r3 + a2 * r2 + a3 * r1 + a4 * r0 + (d3 >>> 26);
  const low0 = (d0 & LIMB) + (d4 >>> 26) * 5;
  h0 = low0 & LIMB;
  h1 = (d1 & LIMB) + (low0 >>> 26);
  h2 = d2 & LIMB;
  h3 = d3 & LIMB;
  h4 = d4 & LIMB;
}

/** Stores the accumulator, reduced modulo 2^130 - 5, as the first 16 bytes of `digest`. */
function polyEnd(): void {
  h2 += h1 >>> 26;
  h1 &= LIMB;
  h3 += h2 >>> 26;
  h2 &= LIMB;
  h4 += h3 >>> 26;
  h3 &= LIMB;
  h0 += (h4 >>> 26) * 5;
  h4 &= LIMB;
  h1 += h0 >>> 26;
  h0 &= LIMB;
  // Subtracts the prime unless that gives a negative number.
  let g0 = h0 + 5;
  let g1 = h1 + (g0 >>> 26);
  let g2 = h2 + (g1 >>> 26);
  let g3 = h3 + (g2 >>> 26);
  const g4 = h4 + (g3 >>> 26);
  const isPast = g4 >>> 26 !== 0;
  g0 = isPast ? g0 & LIMB : h0;
  g1 = isPast ? g1 & LIMB : h1;
  g2 = isPast ? g2 & LIMB : h2;
  g3 = isPast ? g3 & LIMB : h3;
  const top = isPast ? g4 & LIMB : h4;
  store<u64>(digest, g0 | (g1 << 26) | (g2 << 52));
  store<u64>(digest, (g2 >>> 12) | (g3 << 14) | (top << 40), 8);
}

/** Adds up the lanes of both sums of a kilobyte and feeds them to Poly1305. */
@inline
function takeSums(sum0: v128, sum1: v128): void {
  polyBlock(
    i64x2.extract_lane(sum0, 0) + i64x2.extract_lane(sum0, 1),
    i64x2.extract_lane(sum1, 0) + i64x2.extract_lane(sum1, 1),
  );
}

/** One step of one pass of NH: (word 0 + key 0) * (word 2 + key 2), and the same for words 1 and 3. */
@inline
function nh(words: v128, key: v128): v128 {
  const keyed = i32x4.add(words, key);
  return i64x2.extmul_low_i32x4_u(keyed, v128.shuffle<i32>(keyed, keyed, 2, 3, 2, 3));
}

/**
 * Stores the hash of `headBytes` bytes at `head`, followed by `bodyBytes` at `body`, in `digest`. With a body, `headBytes`
 * must be a multiple of 16.
 */
function hashPacket(key: usize, head: usize, headBytes: usize, body: usize, bodyBytes: usize): void {
  polyStart(key + PACKET_KEY_POLY);
  let sum0 = i64x2.splat(0);
  let sum1 = i64x2.splat(0);
  let at = head;
  let bytes = headBytes;
  let used: usize = 0;
  for (let part = 0; part < 2; part++) {
    while (bytes > 0) {
      if (bytes < 16) {
        store<u64>(tail, 0);
        store<u64>(tail, 0, 8);
        memory.copy(tail, at, bytes);
        at = tail;
        bytes = 16;
      }
      const run = min(bytes & ~15, NH_BYTES - used);
      const end = at + run;
      let place = key + used;
      let key0 = v128.load(place);
      for (; at + 64 <= end; at += 64) {
        const key1 = v128.load(place, 16);
        const key2 = v128.load(place, 32);
        const key3 = v128.load(place, 48);
        const key4 = v128.load(place, 64);
        const words0 = v128.load(at);
        const words1 = v128.load(at, 16);
        const words2 = v128.load(at, 32);
        const words3 = v128.load(at, 48);
        sum0 = i64x2.add(sum0, nh(words0, key0));
        sum1 = i64x2.add(sum1, nh(words0, key1));
        sum0 = i64x2.add(sum0, nh(words1, key1));
        sum1 = i64x2.add(sum1, nh(words1, key2));
        sum0 = i64x2.add(sum0, nh(words2, key2));
        sum1 = i64x2.add(sum1, nh(words2, key3));
        sum0 = i64x2.add(sum0, nh(words3, key3));
        sum1 = i64x2.add(sum1, nh(words3, key4));
        key0 = key4;
        place += 64;
      }
      for (; at < end; at += 16) {
        const words = v128.load(at);
        sum0 = i64x2.add(sum0, nh(words, v128.load(place)));
        sum1 = i64x2.add(sum1, nh(words, v128.load(place, 16)));
        place += 16;
      }
      bytes -= run;
      used += run;
      if (used === NH_BYTES) {
        takeSums(sum0, sum1);
        sum0 = i64x2.splat(0);
        sum1 = i64x2.splat(0);
        used = 0;
      }
    }
    at = body;
    bytes = bodyBytes;
  }
  if (used > 0) takeSums(sum0, sum1);
  polyEnd();
}

/** SipHash-2-4. */
function sip(key: usize, address: usize, bytes: usize): u64 {
  const low = load<u64>(key);
  const high = load<u64>(key, 8);
  let v0 = low ^ 0x736f6d6570736575;
  let v1 = high ^ 0x646f72616e646f6d;
  let v2 = low ^ 0x6c7967656e657261;
  let v3 = high ^ 0x7465646279746573;
  const end = address + (bytes & ~7);
  for (;;) {
    const isLast = address === end;
    let word: u64;
    if (isLast) {
      word = <u64>bytes << 56;
      for (let index: usize = 0; index < (bytes & 7); index++) word |= <u64>load<u8>(end + index) << (<u64>index << 3);
    } else {
      word = load<u64>(address);
      address += 8;
    }
    v3 ^= word;
    for (let round = 0; round < 2; round++) {
      v0 += v1;
      v1 = rotl(v1, 13) ^ v0;
      v0 = rotl(v0, 32);
      v2 += v3;
      v3 = rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = rotl(v1, 17) ^ v2;
      v2 = rotl(v2, 32);
    }
    v0 ^= word;
    if (isLast) break;
  }
  v2 ^= 0xff;
  for (let round = 0; round < 4; round++) {
    v0 += v1;
    v1 = rotl(v1, 13) ^ v0;
    v0 = rotl(v0, 32);
    v2 += v3;
    v3 = rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = rotl(v1, 17) ^ v2;
    v2 = rotl(v2, 32);
  }
  return v0 ^ v1 ^ v2 ^ v3;
}

/** SipHash-2-4 of what is in `digest`: the hash that `hashPacket` left there, the number and the length. */
@inline
function sealHash(key: usize, number: u64, bytes: usize): u64 {
  store<u64>(digest, number, 16);
  store<u64>(digest, <u64>bytes, 24);
  return sip(key + PACKET_KEY_SIP, digest, 32);
}

/** The hash of `bytes` bytes, 16 bytes to `out`. For test vectors. */
export function packetHash(key: usize, address: usize, bytes: usize, out: usize): void {
  hashPacket(key, address, bytes, 0, 0);
  v128.store(out, v128.load(digest));
}

/** SipHash-2-4 of `bytes` bytes, 8 bytes to `out`. For test vectors. */
export function sipHash(key: usize, address: usize, bytes: usize, out: usize): void {
  store<u64>(out, sip(key, address, bytes));
}

/**
 * Writes the tags of a burst to `tags`, 8 bytes each. The `count` headers lie side by side with zeros where their tags
 * belong, and so do the payloads, of `bodyBytes` each but the last. The first packet has the number (`high`, `low`).
 */
export function tagPackets(
  key: usize, heads: usize, headBytes: usize, bodies: usize, bodyBytes: usize, lastBytes: usize, count: u32,
  low: u32, high: u32, tags: usize,
): void {
  let number = <u64>low | (<u64>high << 32);
  for (let packet: u32 = 0; packet < count; packet++) {
    const body = packet === count - 1 ? lastBytes : bodyBytes;
    hashPacket(key, heads, headBytes, bodies, body);
    store<u64>(tags, sealHash(key, number, headBytes + body));
    heads += headBytes;
    bodies += body;
    tags += TAG_BYTES;
    number++;
  }
}

/** 1 if the packet's tag is the one for its bytes, number and length, else 0. Overwrites the tag with zeros. */
export function isTagged(key: usize, packet: usize, bytes: usize, low: u32, high: u32): bool {
  const tag = load<u64>(packet, TAG);
  store<u64>(packet, 0, TAG);
  hashPacket(key, packet, bytes, 0, 0);
  return sealHash(key, <u64>low | (<u64>high << 32), bytes) === tag;
}
