// The link to the transport's engine, on a thread of its own if the settings say so.
import { packageFile } from '../../core/package-file.ts';
import type { Settings } from '../../settings/settings.ts';
import type { WakeWord } from '../../threads/wake-word.ts';
import { EngineHost } from './engine-host.ts';
import { type EngineLink, InlineLink, ThreadLink } from './engine-link.ts';

/** Fails with WL_CONFIG for settings, with WL_UNSUPPORTED where system calls are missing. */
export async function openTransportLink(settings: Settings, wake?: WakeWord): Promise<EngineLink> {
  if (settings.transportThread)
    return ThreadLink.start(packageFile('./engine-worker.js', import.meta.url), settings, wake);
  return new InlineLink((requests, onEvent) => new EngineHost({ settings, requests, onEvent, wake }));
}
