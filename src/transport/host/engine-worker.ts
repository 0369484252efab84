// The thread of an engine of the transport.
import { workerData } from 'node:worker_threads';
import { bindDeclaredFunctions } from '../../native/library.ts';
import { pinThread } from '../../native/thread-affinity.ts';
import { useBatchScheduling } from '../../native/thread-scheduling.ts';
import type { Settings } from '../../settings/settings.ts';
import type { LinkedThread } from '../../threads/worker-port.ts';
import { loadTransportIo } from '../io/packet-ios.ts';
import { EngineHost } from './engine-host.ts';
import { coreOf } from './pin-cores.ts';
import { isCrowded } from './rank-cores.ts';
import { type EngineThread, serveEngine } from './serve-engine.ts';

const thread = workerData as LinkedThread<EngineThread<Settings>>;
const { settings, engine } = thread.data;

bindDeclaredFunctions();
const core = coreOf(settings.transportPinCore, engine);
if (core !== undefined) pinThread(core);
// Woken for each packet, it would take few of them at a time from those who send and compute on its core.
if (isCrowded(settings)) useBatchScheduling();
await loadTransportIo(settings);
serveEngine(thread, (parts) => new EngineHost({ settings, ...parts }));
