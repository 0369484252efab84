// Starts the engines of a transport, on threads of their own if the settings say so.
import { availableParallelism } from 'node:os';
import { packageFile } from '../../core/package-file.ts';
import type { Doorbell } from '../../native/readiness.ts';
import type { Settings } from '../../settings/settings.ts';
import type { WakeWord } from '../../threads/wake-word.ts';
import { readEnvironment } from '../../world/environment.ts';
import { CommandRing } from './command-ring.ts';
import { EngineGroup } from './engine-group.ts';
import { EngineHost } from './engine-host.ts';
import { InlineLink, type SharedParts, ThreadLink } from './engine-link.ts';
import { SharedRequests } from './shared-requests.ts';

/** Engines that a transport has by itself: one for so many cores, but no more than this. */
const CORES_PER_ENGINE = 8;
const MOST_BY_CORES = 4;

/** How many engines a transport with these settings has. `cores`: those that are this rank's share. */
export function engineCount(
  { transportThread, transportEngines }: Pick<Settings, 'transportThread' | 'transportEngines'>,
  cores: number = coresOfRank(),
): number {
  if (!transportThread) return 1;
  if (transportEngines > 0) return transportEngines;
  return Math.max(1, Math.min(MOST_BY_CORES, Math.floor(cores / CORES_PER_ENGINE)));
}

/** Cores that this process may use, shared with the other ranks of its host. */
function coresOfRank(): number {
  return availableParallelism() / ranksOfHost();
}

function ranksOfHost(): number {
  try {
    return readEnvironment().localSize ?? 1;
  } catch {
    // Variables of a launcher that make no sense are for join() to refuse; a transport needs none.
    return 1;
  }
}

/** Fails with WL_CONFIG for settings, with WL_UNSUPPORTED where system calls are missing. */
export async function openEngines(settings: Settings, wake?: WakeWord): Promise<EngineGroup> {
  const requests = new SharedRequests();
  const engines = engineCount(settings);
  const rings = Array.from({ length: engines }, () => new CommandRing());
  const shared: SharedParts = { requests, rings, wake };
  if (settings.transportThread) return startThreads(settings, shared);
  const link = new InlineLink(shared, (parts) => new EngineHost({ settings, ...parts }));
  return new EngineGroup(requests, [link]);
}

async function startThreads(settings: Settings, shared: SharedParts): Promise<EngineGroup> {
  const entry = packageFile('./engine-worker.js', import.meta.url);
  const starts = await Promise.allSettled(
    shared.rings.map((_, engine) => ThreadLink.start(entry, settings, engine, shared)),
  );
  const links = starts.flatMap((start) => (start.status === 'fulfilled' ? [start.value] : []));
  const bells: Doorbell[] = [];
  const group = new EngineGroup(shared.requests, links, bells);
  try {
    for (const start of starts) if (start.status === 'rejected') throw start.reason;
    if (links.length > 1) {
      for (const link of links) {
        const bell = link.duplicateBell();
        if (bell !== undefined) bells.push(bell);
      }
      await Promise.all(links.map((link) => link.meet(bells)));
    }
    return group;
  } catch (error) {
    await group.close().catch(() => {});
    throw error;
  }
}
