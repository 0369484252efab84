// Whether a collective object fits this rank and its host: asked before any of its memory is taken.
import { statfsSync } from 'node:fs';
import { freemem } from 'node:os';
import { formatBytes } from '../core/byte-size.ts';
import { WeftlineError } from '../core/errors.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { RankGroup } from '../world/rank-group.ts';
import { SHARED_MEMORY_FOLDER } from '../world/shared-memory-files.ts';
import { MORE_ROOM } from './shared-file.ts';
import { windowFootprint } from './symmetric-window.ts';

/** Memory of each rank: mapped by all ranks of its host, or its own. */
interface RoomPart {
  /** "windows" of the ranks, or the "network side" of one. */
  readonly name: string;
  /** Bytes of one rank. */
  readonly bytes: number;
  readonly isShared: boolean;
}

/** What there is, for tests. */
interface Room {
  readonly sharedFree: number;
  readonly memoryFree: number;
}

/**
 * Fails with WL_MEMORY or WL_SHARED_MEMORY, listing what each part takes, if the parts do not fit this rank's address space,
 * /dev/shm or the memory of this host. Ranks of other objects may still come before: what takes the memory looks again.
 */
export function checkMemoryBudget(
  what: string,
  parts: readonly RoomPart[],
  { group, device, room = roomOf() }: { readonly group: RankGroup; readonly device: CpuDevice; readonly room?: Room },
): void {
  const ranks = group.topology.scaleUpRanks.length;
  const isAlone = ranks === 1 && group.topology.hosts.length === 1;
  const needs = parts.map(({ name, bytes, isShared }) => {
    const mapped = isShared ? windowFootprint(bytes, ranks) : bytes;
    const each = `${formatBytes(bytes)} (one per rank of this host)`;
    const text = isShared ? `${ranks} ${name} of ${each} need` : `the ${name} needs`;
    return { name, mapped, ofHost: isShared ? mapped : mapped * ranks, isFile: isShared && !isAlone, text };
  });
  const list = (of: typeof needs, bytes: Bytes): string =>
    of.map((part) => `${part.text} ${formatBytes(part[bytes])}`).join(', ');
  const sum = (of: typeof needs, bytes: Bytes): number => of.reduce((all, part) => all + part[bytes], 0);
  const { used, limit, largestGap } = device.space;
  const mapped = sum(needs, 'mapped');
  if (mapped > limit - used || needs.some((part) => part.mapped > largestGap)) {
    throw new WeftlineError(
      'WL_MEMORY',
      `${what} needs ${formatBytes(mapped)} of this rank's address space: ${list(needs, 'mapped')}; ${formatBytes(used)} of ${formatBytes(limit)} are in use and the largest gap is ${formatBytes(largestGap)}. Use fewer tokens per rank, fewer ranks per host, or free other buffers`,
      { details: { bytes: mapped, parts: figures(needs, 'mapped'), used, limit, largestGap } },
    );
  }
  const files = needs.filter(({ isFile }) => isFile);
  const shared = sum(files, 'ofHost');
  if (shared > room.sharedFree) {
    throw new WeftlineError(
      'WL_SHARED_MEMORY',
      `${what}: ${SHARED_MEMORY_FOLDER} has ${formatBytes(room.sharedFree)} free, ${list(files, 'ofHost')}: ${MORE_ROOM}`,
      { details: { bytes: shared, parts: figures(files, 'ofHost'), free: room.sharedFree } },
    );
  }
  // Pages without reservation are taken as they are touched, which may be few of them.
  const all = sum(needs, 'ofHost');
  if (!group.settings.reserveSharedMemory || all <= room.memoryFree) return;
  throw new WeftlineError(
    'WL_MEMORY',
    `${what} needs ${formatBytes(all)} of this host's memory: ${list(needs, 'ofHost')} for ${ranks} ${ranks === 1 ? 'rank' : 'ranks'}; ${formatBytes(room.memoryFree)} are available. Use fewer tokens per rank or fewer ranks per host`,
    { details: { bytes: all, parts: figures(needs, 'ofHost'), available: room.memoryFree } },
  );
}

type Bytes = 'mapped' | 'ofHost';

function figures(
  needs: readonly { readonly name: string; readonly mapped: number; readonly ofHost: number }[],
  bytes: Bytes,
): Readonly<Record<string, number>> {
  return Object.fromEntries(needs.map((part) => [part.name, part[bytes]]));
}

function roomOf(): Room {
  // 0 where no control group sets a limit; Deno has no such call.
  const most = (process as Partial<NodeJS.Process>).constrainedMemory?.() || Infinity;
  return { sharedFree: sharedFree(), memoryFree: Math.min(freemem(), most) };
}

/** The file that is made later says what is wrong where there is no such folder. */
function sharedFree(): number {
  try {
    const { bavail, bsize } = statfsSync(SHARED_MEMORY_FOLDER);
    return bavail * bsize;
  } catch {
    return Infinity;
  }
}
