// Serves an engine on a thread of its own: carries out commands, lets it work, sleeps when there is nothing to do.
import type { MessagePort } from 'node:worker_threads';
import type { Doorbell } from '../../native/readiness.ts';
import { ProcessorLoans, SpinTime } from '../../threads/spin-time.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { WorkerPort } from '../../threads/worker-link.ts';
import { CommandRing, EngineBells } from './command-ring.ts';
import type { HostCalls, HostEvent } from './host-calls.ts';
import { SharedRequests } from './shared-requests.ts';

/** What moves data for a user who may be on another thread. */
export interface HostedEngine extends Disposable {
  /** Rung to end a sleep. */
  readonly doorbell: Doorbell;
  readonly calls: HostCalls;
  /** Must be called before each of `calls`. */
  beginCall(): void;
  /** Hot path. Carries out what the user's side has put, and what had to wait for other engines; false if there was nothing. */
  takeCommands(): boolean;
  /** What `takeCommands` has seen in the ring of the ends on other engines. */
  readonly seenFences: number;
  /** Hot path. False if there was nothing to do. */
  step(): boolean;
  /** True once so little happens that the thread had better sleep. */
  readonly isIdle: boolean;
  /** Sleeps until there is work, the doorbell rings, or `most` microseconds are over. */
  sleep(most?: number): void;
}

/** What the engine's thread is called with: those of its host, and a first one that says how to wake it. */
export interface EngineCalls extends HostCalls {
  /** Descriptor of the doorbell. */
  start(): number;
  /** The doorbells of all engines of the transport, in their order. */
  meet(descriptors: readonly number[]): void;
}

export interface EngineThread<Data> {
  readonly settings: Data;
  /** Memory of the request table. */
  readonly shared: SharedArrayBuffer;
  /** Memory of the command rings of all engines of the transport, and which of them this one is. */
  readonly rings: readonly SharedArrayBuffer[];
  readonly engine: number;
  readonly wake: SharedArrayBuffer | undefined;
}

/** What a hosted engine shares with other threads. */
export interface HostParts {
  /** How many engines the transport has, and which of them this one is. */
  readonly engines: number;
  readonly engine: number;
  readonly requests: SharedRequests;
  readonly ring: CommandRing;
  /** Bells of the other engines. */
  readonly bells: EngineBells;
  readonly onEvent: (event: HostEvent) => void;
  /** Rung when a request ended, when signals came, and when a connection ended. */
  readonly wake: WakeWord | undefined;
}

/** Returns once the engine was told to stop. */
export function serveEngine(
  { data, port: messages }: { readonly data: EngineThread<unknown>; readonly port: MessagePort },
  create: (parts: HostParts) => HostedEngine,
): void {
  const { engine } = data;
  const requests = new SharedRequests(data.shared);
  const rings = data.rings.map((buffer) => new CommandRing(buffer));
  const ring = rings[engine] as CommandRing;
  const bells = new EngineBells(rings);
  const port = new WorkerPort<HostEvent>(messages);
  const wake = data.wake === undefined ? undefined : new WakeWord(data.wake);
  try {
    using host = create({
      engines: rings.length,
      engine,
      requests,
      ring,
      bells,
      onEvent: (event) => port.send(event),
      wake,
    });
    const idleness = new Idleness(() => requests.isAwaited || wake?.isAwaited === true);
    run(host, { ring, bells, port, idleness });
  } catch (error) {
    // While the user's thread is blocked, it does not hear that this one ends.
    port.crash(error);
    ring.reportCrash();
    requests.wakeWaiters();
    wake?.ring();
  }
}

interface Run {
  readonly ring: CommandRing;
  readonly bells: EngineBells;
  readonly port: WorkerPort<HostEvent>;
  readonly idleness: Idleness;
}

function run(host: HostedEngine, { ring, bells, port, idleness }: Run): void {
  const calls: EngineCalls = {
    ...host.calls,
    start: () => host.doorbell.fd,
    meet: (descriptors) => bells.meet(descriptors),
  };
  const beginCall = (): void => host.beginCall();
  let seenCalls = 0;
  while (!port.isStopped) {
    const hasCommands = host.takeCommands();
    const hasWork = host.step();
    if (ring.calls !== seenCalls) {
      seenCalls = ring.calls;
      port.serveNow(calls, beginCall);
    } else if (hasCommands || hasWork) {
      idleness.end();
    } else if (!idleness.polls() && host.isIdle && ring.fallAsleep(seenCalls, host.seenFences)) {
      host.sleep();
      ring.wakeUp();
    }
  }
}

/** The most; less where it turns out to be in vain. */
const MAX_SPIN_MICROSECONDS = 300;
const NOT_IDLE = -1;

/**
 * On machines with few processors the one who waits runs on the processor that the engine needs, or the other way round:
 * each lends it to the other between two looks, which costs less than to sleep and be woken.
 */
export class Idleness {
  readonly #isAwaited: () => boolean;
  readonly #spin = new SpinTime(MAX_SPIN_MICROSECONDS);
  readonly #loans = new ProcessorLoans();
  #since = NOT_IDLE;
  #pollsUntil = 0;

  /** `isAwaited`: true while a thread does nothing but wait for the engine. */
  constructor(isAwaited: () => boolean) {
    this.#isAwaited = isAwaited;
  }

  /** Hot path. There was something to do. */
  end(): void {
    if (this.#since === NOT_IDLE) return;
    this.#spin.learn(performance.now() - this.#since);
    this.#since = NOT_IDLE;
  }

  /** Hot path. There was nothing to do. False: the thread may sleep; true: it had better look again, others went first. */
  polls(): boolean {
    const now = performance.now();
    if (this.#since === NOT_IDLE) {
      this.#since = now;
      this.#pollsUntil = this.#spin.isShort ? now : now + this.#spin.milliseconds;
    }
    if (now >= this.#pollsUntil || !this.#isAwaited()) return false;
    if (this.#spin.lent(this.#loans.lend(now) - now)) this.#pollsUntil = now;
    return true;
  }
}
