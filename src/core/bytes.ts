// Bytes of a caller: a Uint8Array of its own, a Buffer, a view of shared memory, beginning anywhere in what holds it.

/**
 * A copy that begins at offset 0 of memory of its own. `slice` is none for a Buffer: there it gives a view of the same
 * memory, which begins somewhere in a pool.
 */
export function copyOf(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  return new Uint8Array(bytes);
}
