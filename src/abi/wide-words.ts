// Whole numbers below 2^53 as two little-endian words of 32 bits, for layouts that hold addresses and lengths.

const TWO_32 = 2 ** 32;

export function putWide(words: Uint32Array, word: number, value: number): void {
  words[word] = value;
  words[word + 1] = value / TWO_32;
}

export function wideAt(words: Uint32Array, word: number): number {
  return words[word]! + words[word + 1]! * TWO_32;
}

/** The same at a byte offset. */
export function setWide(view: DataView, at: number, value: number): void {
  view.setUint32(at, value % TWO_32, true);
  view.setUint32(at + 4, Math.floor(value / TWO_32), true);
}

export function getWide(view: DataView, at: number): number {
  return view.getUint32(at, true) + view.getUint32(at + 4, true) * TWO_32;
}
