// Byte counts as people read them.

const units = ['KiB', 'MiB', 'GiB', 'TiB'] as const;

/** "512 B", "58.7 MiB", "4 GiB": at most one decimal, powers of 1024. */
export function formatBytes(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  let value = bytes;
  let unit = 'B';
  for (const next of units) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return `${Math.round(value * 10) / 10} ${unit}`;
}
