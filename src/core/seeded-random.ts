// Random numbers that a seed determines, the same on every machine.

/** Returns a source of numbers in [0, 1) with 32 random bits each. */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    // A Weyl sequence, then a finaliser that spreads every bit over the whole word.
    state = (state + 0x9e37_79b9) >>> 0;
    let word = state;
    word = Math.imul(word ^ (word >>> 16), 0x21f0_aaad);
    word = Math.imul(word ^ (word >>> 15), 0x735a_2d97);
    return ((word ^ (word >>> 15)) >>> 0) / 0x1_0000_0000;
  };
}
