// Bytes of a caller: a Uint8Array of its own, a Buffer, a view of shared memory, beginning anywhere in what holds it.

/**
 * A copy at offset 0 of memory of its own. `slice` copies a Uint8Array, but of a Buffer it returns a view of the same
 * memory, which begins anywhere in a pool.
 */
export function copyOf(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  return new Uint8Array(bytes);
}
