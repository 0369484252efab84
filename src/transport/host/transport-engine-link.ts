// The link to the transport's engine, on a thread of its own if the settings say so.
import type { WakeWord } from '../../threads/wake-word.ts';
import type { Settings } from '../../settings/settings.ts';
import { EngineHost, type HostCall, type HostEvent } from './engine-host.ts';
import { type EngineLink, type EngineLinkOptions, openInlineLink, openThreadLink } from './engine-link.ts';

export async function openTransportLink(settings: Settings, wake?: WakeWord): Promise<EngineLink<HostCall, HostEvent>> {
  const options: EngineLinkOptions<HostCall, HostEvent> = {
    name: 'transport',
    thread: { entry: new URL('./engine-worker.js', import.meta.url), data: settings },
    inline: (requests, onEvent) => new EngineHost({ settings, requests, onEvent, wake }),
    wake,
  };
  return settings.transportThread ? openThreadLink(options) : openInlineLink(options);
}
