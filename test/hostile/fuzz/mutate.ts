// Hostile inputs made of valid ones: bits, lengths, splices, numbers at the edges of their ranges.
import { type Decoder, MAX_INPUT_BYTES } from './decoder.ts';
import { mutateJson } from './mutate-json.ts';
import type { Random } from './random.ts';

const numbers32 = [0, 1, 2, 7, 8, 63, 64, 127, 128, 255, 256, 4095, 4096, 65_535, 65_536, 0x7fff_ffff, 0x8000_0000];
const interesting32 = [...numbers32, ...numbers32.map((value) => ~value >>> 0)];
const interesting64 = [
  ...interesting32.map(BigInt),
  2n ** 32n,
  2n ** 47n,
  2n ** 53n - 1n,
  2n ** 53n,
  2n ** 63n,
  2n ** 64n - 4096n,
  2n ** 64n - 1n,
];

/** One input: a seed with one to eight changes, or now and then bytes that were never valid. */
export function mutate(decoder: Decoder, seeds: readonly Uint8Array[], random: Random): Uint8Array {
  if (random.chance(0.02)) return random.bytes(random.below(300));
  let input: Uint8Array = random.pick(seeds).slice();
  if (decoder.isJson === true && random.chance(0.7)) input = mutateJson(input, random);
  else {
    const changes = 1 + Math.floor(random.next() ** 3 * 8);
    for (let change = 0; change < changes; change++) input = changeOnce(input, { decoder, seeds, random });
  }
  if (decoder.repair !== undefined && random.chance(0.5)) input = decoder.repair(input);
  return input.subarray(0, MAX_INPUT_BYTES);
}

interface Tools {
  readonly decoder: Decoder;
  readonly seeds: readonly Uint8Array[];
  readonly random: Random;
}

function changeOnce(input: Uint8Array, { decoder, seeds, random }: Tools): Uint8Array {
  if (input.length === 0) return random.bytes(1 + random.below(64));
  const at = placeIn(input, decoder, random);
  switch (random.below(9)) {
    case 0:
      input[at] = (input[at] as number) ^ (1 << random.below(8));
      return input;
    case 1:
      input[at] = random.below(256);
      return input;
    case 2:
    case 3:
      putNumber(input, at, random);
      return input;
    case 4:
      return input.slice(0, random.chance(0.5) ? at : random.below(input.length));
    case 5:
      return joined(input, random.chance(0.5) ? random.bytes(1 + random.below(64)) : new Uint8Array(random.below(300)));
    case 6: {
      // The begin of one and the end of another.
      const other = random.pick(seeds);
      return joined(input.subarray(0, at), other.subarray(random.below(other.length + 1)));
    }
    case 7: {
      // A piece twice, or gone.
      const end = Math.min(input.length, at + 1 + random.below(64));
      const again = random.chance(0.5) ? input.subarray(at, end) : new Uint8Array();
      return joined(input.subarray(0, random.chance(0.5) ? end : at), again, input.subarray(end));
    }
    default: {
      const from = random.below(input.length);
      input.copyWithin(at, from, from + 1 + random.below(32));
      return input;
    }
  }
}

function placeIn(input: Uint8Array, { fields = [] }: Decoder, random: Random): number {
  const known = fields.filter((offset) => offset < input.length);
  return known.length > 0 && random.chance(0.7) ? random.pick(known) : random.below(input.length);
}

function putNumber(input: Uint8Array, at: number, random: Random): void {
  const view = new DataView(input.buffer, input.byteOffset, input.byteLength);
  const left = input.length - at;
  const isLittle = random.chance(0.9);
  const width = random.pick([2, 4, 4, 8]);
  if (width === 8 && left >= 8) view.setBigUint64(at, random.pick(interesting64), isLittle);
  else if (width >= 4 && left >= 4) {
    const nearby = view.getUint32(at, isLittle) + random.below(17) - 8;
    view.setUint32(at, random.chance(0.3) ? nearby >>> 0 : random.pick(interesting32), isLittle);
  } else if (left >= 2) view.setUint16(at, random.pick(interesting32) & 0xffff, isLittle);
  else input[at] = random.pick([0, 1, 0x7f, 0x80, 0xff]);
}

export function joined(...pieces: readonly Uint8Array[]): Uint8Array {
  const bytes = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}
