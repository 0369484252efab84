// Serves an engine on a thread of its own: carries out commands, lets it work, sleeps when there is nothing to do.
import type { Doorbell } from '../../native/readiness.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { type LinkedThread, WorkerPort } from '../../threads/worker-port.ts';
import type { HostCalls, HostEvent } from './host-calls.ts';
import { Idleness } from './idleness.ts';
import { SharedRequests } from './shared-requests.ts';

/** What moves data for a user who may be on another thread. */
export interface HostedEngine extends Disposable {
  /** Rung to end a sleep. */
  readonly doorbell: Doorbell;
  readonly calls: HostCalls;
  /** Before each of `calls`. */
  beginCall(): void;
  /** Hot path. Carries out what the user's side has put; false if there was nothing. */
  takeCommands(): boolean;
  /** Hot path. False if there was nothing to do. */
  step(): boolean;
  /** True once so little happens that the thread had better sleep. */
  readonly isIdle: boolean;
  /** Until there is work, the doorbell rings, or `most` microseconds are over. */
  sleep(most?: number): void;
}

/** What the engine's thread is called with: those of its host, and a first one that says how to wake it. */
export interface EngineCalls extends HostCalls {
  /** Descriptor of the doorbell. */
  start(): number;
}

export interface EngineThread<Data> {
  readonly settings: Data;
  readonly shared: SharedArrayBuffer;
  readonly wake: SharedArrayBuffer | undefined;
}

export type CreateHost = (
  requests: SharedRequests,
  onEvent: (event: HostEvent) => void,
  wake: WakeWord | undefined,
) => HostedEngine;

/** Returns once the engine was told to stop. */
export function serveEngine(
  { data: { shared, wake }, port: messages }: LinkedThread<EngineThread<unknown>>,
  create: CreateHost,
): void {
  const requests = new SharedRequests(shared);
  const port = new WorkerPort<HostEvent>(messages);
  const wakeWord = wake === undefined ? undefined : new WakeWord(wake);
  try {
    using host = create(requests, (event) => port.send(event), wakeWord);
    const idleness = new Idleness(() => requests.isAwaited || wakeWord?.isAwaited === true);
    run(host, { requests, port, idleness });
  } catch (error) {
    // While the user's thread is blocked, it does not hear that this one ends.
    port.crash(error);
    requests.reportCrash();
    wakeWord?.ring();
  }
}

interface Run {
  readonly requests: SharedRequests;
  readonly port: WorkerPort<HostEvent>;
  readonly idleness: Idleness;
}

function run(host: HostedEngine, { requests, port, idleness }: Run): void {
  const calls: EngineCalls = { ...host.calls, start: () => host.doorbell.fd };
  const beginCall = (): void => host.beginCall();
  let seenCalls = 0;
  while (!port.isStopped) {
    const hasCommands = host.takeCommands();
    const hasWork = host.step();
    if (requests.calls !== seenCalls) {
      seenCalls = requests.calls;
      port.serveNow(calls, beginCall);
    } else if (hasCommands || hasWork) {
      idleness.end();
    } else if (!idleness.polls() && host.isIdle && requests.fallAsleep(seenCalls)) {
      host.sleep();
      requests.wakeUp();
    }
  }
}
