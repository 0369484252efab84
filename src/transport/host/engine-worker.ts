// The thread of an engine of the transport: carries out commands, lets the engine work, sleeps when there is nothing to do.
import type { MessagePort } from 'node:worker_threads';
import { pinThread, useBatchScheduling } from '../../native/libc.ts';
import { bindDeclaredFunctions } from '../../native/library.ts';
import type { Settings } from '../../settings/settings.ts';
import { ProcessorLoans, SpinTime } from '../../threads/spin-time.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { WorkerPort } from '../../threads/worker-link.ts';
import { loadTransportIo } from '../io/packet-ios.ts';
import { CommandRing, EngineBells } from './command-ring.ts';
import { EngineHost, type HostCalls, type HostEvent } from './engine-host.ts';
import { coreOf, isCrowded } from './rank-cores.ts';
import { SharedRequests } from './shared-requests.ts';

/** What the engine's thread is called with: those of its host, and a first one that says how to wake it. */
export interface EngineCalls extends HostCalls {
  /** Descriptor of the doorbell. */
  start(): number;
  /** The doorbells of all engines of the transport, in their order. */
  meet(descriptors: readonly number[]): void;
}

export interface EngineThread {
  readonly settings: Settings;
  /** Memory of the request table. */
  readonly shared: SharedArrayBuffer;
  /** Memory of the command rings of all engines of the transport, and which of them this one is. */
  readonly rings: readonly SharedArrayBuffer[];
  readonly engine: number;
  /** That of the word that is rung for news. */
  readonly news: SharedArrayBuffer;
}

export async function run(data: EngineThread, port: MessagePort): Promise<void> {
  const { settings, engine } = data;
  bindDeclaredFunctions();
  const core = coreOf(settings.transportPinCore, engine);
  const unpin = core === undefined ? undefined : pinThread(core);
  // Woken for each packet, it would take few of them at a time from those who send and compute on its core.
  const leaveBatch = isCrowded(settings) ? useBatchScheduling() : undefined;
  await loadTransportIo(settings);
  try {
    serveEngine(data, port);
  } finally {
    leaveBatch?.();
    unpin?.();
  }
}

/** Returns once the engine was told to stop. */
function serveEngine(data: EngineThread, messages: MessagePort): void {
  const { settings, engine } = data;
  const requests = new SharedRequests(new WakeWord(data.news), data.shared);
  const rings = data.rings.map((buffer) => new CommandRing(buffer));
  const ring = rings[engine] as CommandRing;
  const bells = new EngineBells(rings);
  const port = new WorkerPort<HostEvent>(messages);
  try {
    using host = new EngineHost({
      settings,
      engines: rings.length,
      engine,
      requests,
      ring,
      bells,
      onEvent: (event) => port.send(event),
    });
    const idleness = new Idleness(() => requests.news.isAwaited);
    loop(host, { ring, bells, port, idleness });
  } catch (error) {
    // While the user's thread is blocked, it does not hear that this one ends.
    port.crash(error);
    ring.reportCrash();
    requests.news.ring();
  }
}

interface Loop {
  readonly ring: CommandRing;
  readonly bells: EngineBells;
  readonly port: WorkerPort<HostEvent>;
  readonly idleness: Idleness;
}

function loop(host: EngineHost, { ring, bells, port, idleness }: Loop): void {
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
