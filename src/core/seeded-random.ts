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

/** A random permutation that is one cycle, so that nobody sends to itself (Sattolo's shuffle). */
export function randomCycle(size: number, random: () => number): number[] {
  const order = Array.from({ length: size }, (_, index) => index);
  for (let last = size - 1; last > 0; last -= 1) {
    const other = Math.floor(random() * last);
    [order[last], order[other]] = [order[other]!, order[last]!];
  }
  return order;
}
