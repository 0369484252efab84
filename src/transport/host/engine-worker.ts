// The thread of the transport's engine.
import { workerData } from 'node:worker_threads';
import { pinThread } from '../../native/thread-affinity.ts';
import type { Settings } from '../../settings/settings.ts';
import type { LinkedThread } from '../../threads/worker-port.ts';
import { EngineHost } from './engine-host.ts';
import { type EngineThread, serveEngine } from './serve-engine.ts';

const thread = workerData as LinkedThread<EngineThread<Settings>>;
const { settings } = thread.data;

if (settings.transportPinCore !== '') pinThread(Number(settings.transportPinCore));
serveEngine(thread, (requests, onEvent, wake) => new EngineHost({ settings, requests, onEvent, wake }));
