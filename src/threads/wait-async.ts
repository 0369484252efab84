// Atomics.waitAsync, which Node 20 has and the ES library of this language level does not declare.

interface AtomicsWithWaitAsync {
  waitAsync(words: Int32Array, index: number, value: number, milliseconds: number): { readonly value: unknown };
}

/** Resolves when the word is notified, at once if it no longer holds `value`, or after `milliseconds`. */
export async function waitAsync(words: Int32Array, index: number, value: number, milliseconds: number): Promise<void> {
  await (Atomics as object as AtomicsWithWaitAsync).waitAsync(words, index, value, milliseconds).value;
}
