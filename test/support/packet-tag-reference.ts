// The tag of a packet computed plainly, with large integers: what the kernel is compared with.
import { packetKey } from '#lib/abi/cpu-kernels.js';

export function fromHex(text: string): Uint8Array {
  return Uint8Array.from(Buffer.from(text.replaceAll(' ', ''), 'hex'));
}

export function number(little: Uint8Array): bigint {
  return little.reduceRight((sum, byte) => (sum << 8n) | BigInt(byte), 0n);
}

export function littleEndian(value: bigint, length: number): Uint8Array {
  return Uint8Array.from({ length }, (_, index) => Number((value >> BigInt(8 * index)) & 255n));
}

/** Poly1305 of RFC 8439 without the number that is added at the end. */
export function poly1305(key: Uint8Array, message: Uint8Array): bigint {
  const r = number(key) & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffffn;
  let sum = 0n;
  for (let at = 0; at < message.length; at += 16) {
    const block = message.subarray(at, at + 16);
    sum = ((sum + number(block) + (1n << BigInt(8 * block.length))) * r) % (2n ** 130n - 5n);
  }
  return sum;
}

function word(of: Uint8Array, index: number): bigint {
  return number(of.subarray(4 * index, 4 * index + 4));
}

/** NH of Adiantum, word by word: a sum of 64 bits per pass for each kilobyte. */
export function nh(key: Uint8Array, message: Uint8Array, passes = 2): Uint8Array {
  const padded = new Uint8Array(Math.ceil(message.length / 16) * 16);
  padded.set(message);
  const sums: bigint[] = [];
  for (let from = 0; from < padded.length; from += 1024) {
    const chunk = padded.subarray(from, from + 1024);
    for (let pass = 0; pass < passes; pass++) {
      let sum = 0n;
      for (let unit = 0; unit < chunk.length / 4; unit += 4) {
        const keyed = [0, 1, 2, 3].map((lane) =>
          BigInt.asUintN(32, word(chunk, unit + lane) + word(key, unit + 4 * pass + lane)),
        ) as [bigint, bigint, bigint, bigint];
        sum += keyed[0] * keyed[2] + keyed[1] * keyed[3];
      }
      sums.push(BigInt.asUintN(64, sum));
    }
  }
  return Uint8Array.from(sums.flatMap((sum) => [...littleEndian(sum, 8)]));
}

function rotate(value: bigint, bits: bigint): bigint {
  return BigInt.asUintN(64, (value << bits) | (value >> (64n - bits)));
}

export function sipHash(key: Uint8Array, message: Uint8Array): bigint {
  const [low, high] = [number(key.subarray(0, 8)), number(key.subarray(8))];
  let [a, b, c, d] = [
    low ^ 0x736f_6d65_7073_6575n,
    high ^ 0x646f_7261_6e64_6f6dn,
    low ^ 0x6c79_6765_6e65_7261n,
    high ^ 0x7465_6462_7974_6573n,
  ];
  const round = (): void => {
    a = BigInt.asUintN(64, a + b);
    b = rotate(b, 13n) ^ a;
    a = rotate(a, 32n);
    c = BigInt.asUintN(64, c + d);
    d = rotate(d, 16n) ^ c;
    a = BigInt.asUintN(64, a + d);
    d = rotate(d, 21n) ^ a;
    c = BigInt.asUintN(64, c + b);
    b = rotate(b, 17n) ^ c;
    c = rotate(c, 32n);
  };
  const whole = message.length - (message.length % 8);
  const words = Array.from({ length: whole / 8 }, (_, index) => number(message.subarray(8 * index, 8 * index + 8)));
  words.push(number(message.subarray(whole)) | (BigInt(message.length & 255) << 56n));
  for (const each of words) {
    d ^= each;
    round();
    round();
    a ^= each;
  }
  c ^= 255n;
  for (let count = 0; count < 4; count++) round();
  return a ^ b ^ c ^ d;
}

/** What the kernel must compute: the tag of a packet whose tag bytes are zero. */
export function referenceTag(key: Uint8Array, packet: Uint8Array, packetNumber: bigint): bigint {
  const at = packetKey.offset;
  const hash = BigInt.asUintN(128, poly1305(key.subarray(at.poly, at.sip), nh(key.subarray(at.nh, at.poly), packet)));
  const sealed = [littleEndian(hash, 16), littleEndian(packetNumber, 8), littleEndian(BigInt(packet.length), 8)];
  return sipHash(key.subarray(at.sip), Buffer.concat(sealed));
}
