// The thread of an engine of the transport.
import type { MessagePort } from 'node:worker_threads';
import { bindDeclaredFunctions } from '../../native/library.ts';
import { pinThread, useBatchScheduling } from '../../native/libc.ts';
import type { Settings } from '../../settings/settings.ts';
import { loadTransportIo } from '../io/packet-ios.ts';
import { EngineHost } from './engine-host.ts';
import { coreOf, isCrowded } from './rank-cores.ts';
import { type EngineThread, serveEngine } from './serve-engine.ts';

export async function run(data: EngineThread<Settings>, port: MessagePort): Promise<void> {
  const { settings, engine } = data;
  bindDeclaredFunctions();
  const core = coreOf(settings.transportPinCore, engine);
  const unpin = core === undefined ? undefined : pinThread(core);
  // Woken for each packet, it would take few of them at a time from those who send and compute on its core.
  const leaveBatch = isCrowded(settings) ? useBatchScheduling() : undefined;
  await loadTransportIo(settings);
  try {
    serveEngine({ data, port }, (parts) => new EngineHost({ settings, ...parts }));
  } finally {
    leaveBatch?.();
    unpin?.();
  }
}
