// Starts the engines of a transport, on threads of their own if the settings say so.
import { packageFile } from '../../core/package-file.ts';
import type { Doorbell } from '../../native/readiness.ts';
import type { Settings } from '../../settings/settings.ts';
import type { WakeWord } from '../../threads/wake-word.ts';
import { startTracing } from '../../tracing/start-tracing.ts';
import { CommandRing } from './command-ring.ts';
import { EngineGroup } from './engine-group.ts';
import { EngineHost } from './engine-host.ts';
import { InlineLink, type SharedParts, ThreadLink } from './engine-link.ts';
import { engineCount, suitCores } from './rank-cores.ts';
import { SharedRequests } from './shared-requests.ts';

/** Fails with WL_CONFIG for settings, with WL_UNSUPPORTED where system calls are missing. */
export async function openEngines(given: Settings, wake?: WakeWord): Promise<EngineGroup> {
  startTracing(given);
  const settings = suitCores(given);
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
