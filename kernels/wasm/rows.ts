// Moves rows. `memory.copy` is the fastest copy here: the engine hands it to the C library's memmove.

export function copyBytes(destination: usize, source: usize, bytes: usize): void {
  memory.copy(destination, source, bytes);
}
