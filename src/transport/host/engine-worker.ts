// The thread of the transport's engine.
import { workerData } from 'node:worker_threads';
import { pinThread } from '../../native/thread-affinity.ts';
import type { Settings } from '../../settings/settings.ts';
import { EngineHost, type HostCall } from './engine-host.ts';
import { type EngineThreadData, serveEngine } from './serve-engine.ts';

const thread = workerData as EngineThreadData;
const settings = thread.data as Settings;

if (settings.transportPinCore !== '') pinThread(Number(settings.transportPinCore));
serveEngine<HostCall>(thread, (requests, onEvent, wake) => new EngineHost({ settings, requests, onEvent, wake }));
