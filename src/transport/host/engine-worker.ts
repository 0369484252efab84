// The thread of an engine: carries out commands, moves packets, sleeps when there is nothing to do.
import { type MessagePort, receiveMessageOnPort, workerData } from 'node:worker_threads';
import { type EncodedError, encodeError } from '../../core/errors.ts';
import { WakeWord } from '../../core/wake-word.ts';
import { pinThread } from '../../native/thread-affinity.ts';
import type { Settings } from '../../settings/settings.ts';
import { EngineHost, type HostCall, type HostEvent } from './engine-host.ts';
import { SharedRequests } from './shared-requests.ts';

export interface EngineWorkerData {
  readonly settings: Settings;
  readonly shared: SharedArrayBuffer;
  readonly port: MessagePort;
  readonly wake: SharedArrayBuffer | undefined;
}

/** What the user's side posts. */
export interface CallMessage {
  readonly id: number;
  readonly call: HostCall;
}

/** What the worker posts: first the doorbell to wake it with, then answers and events. */
export type WorkerMessage =
  | { readonly doorbell: number }
  | { readonly id: number; readonly result: unknown }
  | { readonly id: number; readonly error: EncodedError }
  /** The last message of an engine that failed. */
  | { readonly crash: EncodedError }
  | HostEvent;

const { settings, shared, port, wake } = workerData as EngineWorkerData;
const requests = new SharedRequests(shared);

function post(message: WorkerMessage): void {
  port.postMessage(message);
}

/** False once the worker is to end. */
function answerCalls(host: EngineHost): boolean {
  let isWanted = true;
  for (let next = receiveMessageOnPort(port); next !== undefined; next = receiveMessageOnPort(port)) {
    const { id, call } = next.message as CallMessage;
    // Commands put before the call come before it.
    host.takeCommands();
    try {
      post({ id, result: host.call(call) });
    } catch (error) {
      post({ id, error: encodeError(error) });
    }
    if (call.name === 'stop') isWanted = false;
  }
  return isWanted;
}

function run(host: EngineHost): void {
  let seenCalls = 0;
  for (;;) {
    const hasCommands = host.takeCommands();
    const hasPackets = host.loop.step();
    host.watchPeers();
    if (requests.calls !== seenCalls) {
      seenCalls = requests.calls;
      // Commands put before a call come before it.
      host.takeCommands();
      if (!answerCalls(host)) return;
    } else if (!hasCommands && !hasPackets && host.loop.isIdle && requests.fallAsleep(seenCalls)) {
      host.loop.sleep();
      requests.wakeUp();
    }
  }
}

if (settings.transportPinCore !== '') pinThread(Number(settings.transportPinCore));
using host = new EngineHost({
  settings,
  requests,
  onEvent: post,
  wake: wake === undefined ? undefined : new WakeWord(wake),
});
post({ doorbell: host.loop.doorbell.fd });
try {
  run(host);
} catch (error) {
  // Whoever blocks the user's thread does not hear that this one ends.
  post({ crash: encodeError(error) });
  requests.reportCrash();
}
port.close();
