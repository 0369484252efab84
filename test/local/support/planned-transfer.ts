// A planned transfer from parts that name their regions, as tests of backends write them down.
import { PartTable } from '#lib/transport/part-table.js';
import type { PlannedTransfer } from '#lib/agent/backend.js';

export interface NamedPart<L, R> {
  readonly local: L;
  readonly localOffset: number;
  readonly remote: R;
  readonly remoteOffset: number;
  readonly bytes: number;
}

export function planned<L, R>(named: readonly NamedPart<L, R>[]): PlannedTransfer<L, R> {
  const locals = [...new Set(named.map(({ local }) => local))];
  const remotes = [...new Set(named.map(({ remote }) => remote))];
  const parts = PartTable.ofCount(named.length);
  for (const [index, part] of named.entries()) {
    parts.local[index] = locals.indexOf(part.local);
    parts.remote[index] = remotes.indexOf(part.remote);
    parts.localOffset[index] = part.localOffset;
    parts.remoteOffset[index] = part.remoteOffset;
    parts.bytes[index] = part.bytes;
  }
  return { locals, remotes, parts, isBySelection: false };
}

/** Every range by itself. */
export function namedParts<L, R>({ locals, remotes, parts }: PlannedTransfer<L, R>): NamedPart<L, R>[] {
  return Array.from({ length: parts.count }, (_, row) =>
    Array.from({ length: parts.ranges[row] as number }, (_range, at) => ({
      local: locals[parts.local[row] as number] as L,
      localOffset: (parts.localOffset[row] as number) + at * (parts.localStride[row] as number),
      remote: remotes[parts.remote[row] as number] as R,
      remoteOffset: (parts.remoteOffset[row] as number) + at * (parts.remoteStride[row] as number),
      bytes: parts.bytes[row] as number,
    })),
  ).flat();
}
