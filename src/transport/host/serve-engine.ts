// Serves an engine on a thread of its own: carries out commands, lets it work, sleeps when there is nothing to do.
import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import { type EncodedError, encodeError } from '../../core/errors.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import type { Doorbell } from '../../native/readiness.ts';
import { Idleness } from './idleness.ts';
import { SharedRequests } from './shared-requests.ts';

/** Ends the engine; the last call. */
export interface StopCall {
  readonly name: 'stop';
}

/** What moves data for a user who may be on another thread. */
export interface HostedEngine<Call> extends Disposable {
  /** Rung to end a sleep. */
  readonly doorbell: Doorbell;
  /** Hot path. Carries out what the user's side has put; false if there was nothing. */
  takeCommands(): boolean;
  /** Hot path. False if there was nothing to do. */
  step(): boolean;
  /** True once so little happens that the thread had better sleep. */
  readonly isIdle: boolean;
  /** Until there is work, the doorbell rings, or `most` microseconds are over. */
  sleep(most?: number): void;
  call(call: Call | StopCall): unknown;
}

export interface EngineThreadData {
  readonly data: unknown;
  readonly shared: SharedArrayBuffer;
  readonly port: MessagePort;
  readonly wake: SharedArrayBuffer | undefined;
}

/** What the thread posts: first the doorbell to wake it with, then answers and events. */
export type ThreadMessage<Event> =
  | { readonly doorbell: number }
  | { readonly id: number; readonly result: unknown }
  | { readonly id: number; readonly error: EncodedError }
  /** The last message of an engine that failed. */
  | { readonly crash: EncodedError }
  | { readonly event: Event };

/** Returns once the engine was told to stop. */
export function serveEngine<Call>(
  { shared, port, wake }: EngineThreadData,
  create: (
    requests: SharedRequests,
    onEvent: (event: unknown) => void,
    wake: WakeWord | undefined,
  ) => HostedEngine<Call>,
): void {
  const requests = new SharedRequests(shared);
  const post = (message: ThreadMessage<unknown>): void => port.postMessage(message);
  const wakeWord = wake === undefined ? undefined : new WakeWord(wake);
  using host = create(requests, (event) => post({ event }), wakeWord);
  post({ doorbell: host.doorbell.fd });
  try {
    const idleness = new Idleness(() => requests.isAwaited || wakeWord?.isAwaited === true);
    run(host, requests, { idleness, answer: () => answerCalls(host, port, post) });
  } catch (error) {
    // Whoever blocks the user's thread does not hear that this one ends.
    post({ crash: encodeError(error) });
    requests.reportCrash();
    wakeWord?.ring();
  }
  port.close();
}

interface Run {
  readonly idleness: Idleness;
  readonly answer: () => boolean;
}

function run(host: HostedEngine<never>, requests: SharedRequests, { idleness, answer }: Run): void {
  let seenCalls = 0;
  for (;;) {
    const hasCommands = host.takeCommands();
    const hasWork = host.step();
    if (requests.calls !== seenCalls) {
      seenCalls = requests.calls;
      // Commands put before a call come before it.
      host.takeCommands();
      if (!answer()) return;
    } else if (hasCommands || hasWork) {
      idleness.end();
    } else if (!idleness.polls() && host.isIdle && requests.fallAsleep(seenCalls)) {
      host.sleep();
      requests.wakeUp();
    }
  }
}

/** False once the thread is to end. */
function answerCalls<Call>(
  host: HostedEngine<Call>,
  port: MessagePort,
  post: (message: ThreadMessage<unknown>) => void,
): boolean {
  let isWanted = true;
  for (let next = receiveMessageOnPort(port); next !== undefined; next = receiveMessageOnPort(port)) {
    const { id, call } = next.message as { readonly id: number; readonly call: Call | StopCall };
    // Commands put before the call come before it.
    host.takeCommands();
    try {
      post({ id, result: host.call(call) });
    } catch (error) {
      post({ id, error: encodeError(error) });
    }
    if ((call as StopCall).name === 'stop') isWanted = false;
  }
  return isWanted;
}
