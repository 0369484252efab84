// Bytes that show which operation wrote them.

export function fillPattern(bytes: Uint8Array, number: number): Uint8Array {
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length >>> 2);
  let word = Math.imul(number + 1, 0x9e37_79b9) | 1;
  for (let at = 0; at < words.length; at++) words[at] = word = (Math.imul(word, 1_664_525) + 1_013_904_223) | 0;
  for (let at = words.length * 4; at < bytes.length; at++) bytes[at] = number + at;
  return bytes;
}

/** Where bytes begin to differ from the pattern; -1 if they do not. `bytes` begin at a multiple of 4. */
export function wrongAt(bytes: Uint8Array, number: number): number {
  const expected = fillPattern(new Uint8Array(bytes.length), number);
  if (Buffer.compare(bytes, expected) === 0) return -1;
  return bytes.findIndex((byte, at) => byte !== expected[at]);
}
