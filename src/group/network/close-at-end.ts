// Closes what a program has left open when it has ended: peers may still need what this rank sends or takes in.

const open = new Set<() => Promise<void>>();

/** The end of the program calls `close`, unless the function that this returns is called before. A program that fails just ends. */
export function closeAtEnd(close: () => Promise<void>): () => void {
  if (open.size === 0) process.on('beforeExit', closeAll);
  open.add(close);
  return () => {
    open.delete(close);
    if (open.size === 0) process.off('beforeExit', closeAll);
  };
}

function closeAll(): void {
  if ((process.exitCode ?? 0) !== 0) return;
  // Nobody is left to hear of a failure.
  for (const close of open) void close().catch(() => {});
}
