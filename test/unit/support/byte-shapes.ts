// The same bytes as callers may hold them: of their own, from the pool of Buffers, at an odd place, in shared memory.

type MakeBytes = (count: number) => Uint8Array;

const makers: Readonly<Record<string, MakeBytes>> = {
  'a Uint8Array': (count) => new Uint8Array(count),
  // A small Buffer is a view of a pool that other Buffers lie in as well.
  'a Buffer of the pool at an odd offset': (count) => Buffer.allocUnsafe(count + 1).subarray(1),
  'a Uint8Array at an odd offset': (count) => new Uint8Array(count + 8).subarray(3, 3 + count),
  'a view of a SharedArrayBuffer': (count) => new Uint8Array(new SharedArrayBuffer(count + 8), 5, count),
};

export interface ByteShape {
  readonly shape: string;
  readonly bytes: Uint8Array;
}

/** Zeroed, one of each shape. */
export function emptyShapes(count: number): ByteShape[] {
  return Object.entries(makers).map(([shape, make]) => ({ shape, bytes: make(count).fill(0) }));
}

export function shapesOf(values: Uint8Array): ByteShape[] {
  const all = emptyShapes(values.length);
  for (const { bytes } of all) bytes.set(values);
  return all;
}
