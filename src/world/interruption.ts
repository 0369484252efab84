// How a signal that a launcher gets ends the ranks of all nodes: it is passed on once, and after a time they are killed.
import type { RankFailure } from './first-failure.ts';
import { type NodeLink, type SignalStep, signalSteps } from './node-link.ts';
import { rankList } from './membership.ts';
import { exitCodeOf, type RankProcess, type RankResult } from './rank-process.ts';

const handled = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/** Once all ranks are killed: how long the launchers of other nodes may take to say that theirs have ended as well. */
const LEAVE_MS = 1_000;

/** What a launcher says of a job that a signal ended. */
export interface JobStop {
  /** 128 and the number of the signal, whatever the ranks ended with. */
  readonly exitCode: number;
  readonly summary: string;
}

interface InterruptionOptions {
  readonly stopMs: number;
  readonly ranks: () => readonly RankProcess[];
  readonly notice: (text: string) => void;
  /** Nobody is waited for any more. */
  readonly leave: (signal: NodeJS.Signals) => void;
}

/**
 * The first signal is the ranks' to handle: they may save their work, for `stopMs`. Those that have not ended by then are
 * killed, whatever they do; a second signal to the same launcher means that its sender does not want to wait.
 */
export class Interruption {
  readonly #options: InterruptionOptions;
  readonly #timers: NodeJS.Timeout[] = [];
  readonly #receive = (signal: NodeJS.Signals): void => {
    const isSecond = this.#isReceived;
    this.#isReceived = true;
    const running = this.#running().map(({ rank }) => rank);
    if (isSecond && !this.#isKilling && running.length > 0) {
      const which = signal === this.#signal ? `the second ${signal}` : signal;
      this.#killed = `\n  killed at ${which}: ${rankList(running)}`;
    }
    this.#take(isSecond ? 'kill' : 'pass', signal);
  };
  /** The launchers of the other nodes, once they have met. */
  #link: NodeLink | undefined;
  #signal: NodeJS.Signals | undefined;
  #isReceived = false;
  #isKilling = false;
  /** The ranks of this node that got the signal. */
  readonly #reached = new Set<number>();
  /** Text that names the ranks that a second signal killed. */
  #killed = '';

  constructor(options: InterruptionOptions) {
    this.#options = options;
  }

  get isUnderWay(): boolean {
    return this.#signal !== undefined;
  }

  /** How long the launchers of other nodes may be waited for. */
  get patienceMs(): number {
    return this.#isKilling ? LEAVE_MS : Infinity;
  }

  /** Signals of this process are for the ranks from now on. */
  listen(): void {
    for (const signal of handled) process.on(signal, this.#receive);
  }

  /** The launchers of the other nodes are told and heard from now on. */
  join(link: NodeLink): void {
    this.#link = link;
    // The launcher hears elsewhere of a link that is lost.
    for (const step of signalSteps) {
      link.signalOf(step).then(
        (signal) => this.#take(step, signal),
        () => {},
      );
    }
    if (this.#signal !== undefined) this.#tell('pass', this.#signal);
    if (this.#signal !== undefined && this.#isKilling) this.#tell('kill', this.#signal);
  }

  /** A rank that was being started when the signal came gets it as well. */
  started(rank: RankProcess): void {
    if (this.#signal !== undefined) this.#send(rank, this.#isKilling ? 'SIGKILL' : this.#signal);
  }

  /** How the job ended if a signal ended it before all ranks of this node were started. */
  get stop(): JobStop | undefined {
    const signal = this.#signal;
    if (signal === undefined) return undefined;
    return {
      exitCode: exitCodeOf({ exitCode: null, signal }),
      summary: `the job was stopped by ${signal}${this.#killed}`,
    };
  }

  /** The same of a job with a failure. Undefined if that was before the signal, or all ranks took it and ended by themselves. */
  stopOf({ rank, signal }: RankFailure, ends: readonly RankResult[]): JobStop | undefined {
    const isHere = ends.some((end) => end.rank === rank);
    const isStopped = isHere
      ? this.#reached.has(rank) && ends.some((end) => this.#reached.has(end.rank) && end.signal !== null)
      : signal === this.#signal || signal === 'SIGKILL';
    return isStopped ? this.stop : undefined;
  }

  /** A rank of this node has ended. Launchers that never came are not waited for. */
  ended(): void {
    const signal = this.#signal;
    if (signal === undefined || this.#link !== undefined || this.#running().length > 0) return;
    this.#options.leave(signal);
  }

  [Symbol.dispose](): void {
    for (const signal of handled) process.off(signal, this.#receive);
    for (const timer of this.#timers) clearTimeout(timer);
  }

  /** Signals that several launchers get at a time count as one. */
  #take(step: SignalStep, signal: NodeJS.Signals): void {
    if (step === 'kill') this.#kill(signal);
    else if (this.#signal === undefined) this.#pass(signal);
  }

  #tell(step: SignalStep, signal: NodeJS.Signals): void {
    this.#link?.tellSignal(step, signal).catch(() => {});
  }

  #pass(signal: NodeJS.Signals): void {
    const { stopMs, notice } = this.#options;
    this.#signal = signal;
    this.#tell('pass', signal);
    for (const rank of this.#running()) this.#send(rank, signal);
    this.#after(stopMs, () => {
      const left = this.#running().map(({ rank }) => rank);
      if (left.length > 0 && !this.#isKilling) {
        notice(`not ended within ${stopMs} ms of ${signal} (setting stopMs), and killed: ${rankList(left)}`);
      }
      this.#kill(signal);
    });
    this.ended();
  }

  #kill(signal: NodeJS.Signals): void {
    const { leave } = this.#options;
    this.#signal ??= signal;
    if (this.#isKilling) {
      if (this.#running().length === 0) leave(signal);
      return;
    }
    this.#isKilling = true;
    this.#tell('kill', signal);
    // What else is in the group of a rank ends with it.
    for (const rank of this.#running()) this.#send(rank, 'SIGKILL');
    this.#after(LEAVE_MS, () => leave(signal));
    this.ended();
  }

  #send(rank: RankProcess, signal: NodeJS.Signals): void {
    this.#reached.add(rank.rank);
    rank.signalGroup(signal);
  }

  #running(): RankProcess[] {
    return this.#options.ranks().filter(({ running }) => running);
  }

  #after(milliseconds: number, act: () => void): void {
    this.#timers.push(setTimeout(act, milliseconds));
  }
}
