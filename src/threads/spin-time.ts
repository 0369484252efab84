// How long blocking waits poll before they sleep: longer where waits turn out short, shorter where they do not.
import { availableParallelism } from 'node:os';
import { yieldProcessor } from '../native/libc.ts';
import type { Settings } from '../settings/settings.ts';

// Lending the processor between two looks of a thread that polls: each time where others run meanwhile, seldom elsewhere.

/** A loan that is over sooner let nobody run: it is a system call for nothing, during which nobody looks. */
const SHORTEST_USE_MS = 0.0015;
/** Vain loans after which the processor is offered only once in so many looks. */
const LOANS_IN_VAIN = 64;
const LOOKS_PER_LOAN = 16;

export class ProcessorLoans {
  #inVain = 0;
  #looks = 0;

  /** Hot path. To be called between looks at the time `now`, in milliseconds; returns the time afterwards. */
  lend(now: number): number {
    if (this.#inVain >= LOANS_IN_VAIN) {
      this.#looks += 1;
      if (this.#looks % LOOKS_PER_LOAN !== 0) return now;
    }
    yieldProcessor();
    const after = performance.now();
    this.#inVain = after - now < SHORTEST_USE_MS ? this.#inVain + 1 : 0;
    return after;
  }
}

/** Never less: a look costs next to nothing, and what is about to come is missed without. */
const MIN_MS = 0.01;
/** A thread that keeps the processor for so long is computing; threads that poll give it back much sooner. */
const LONG_ABSENCE_MS = 0.5;
/**
 * How many waits then sleep early: the scheduler runs a woken thread before threads that compute, while a polling thread
 * waits until their time slice ends.
 */
const CAUTIOUS_WAITS = 100;

export class SpinTime {
  readonly #least: number;
  readonly #most: number;
  readonly #longAbsence: number;
  #milliseconds: number;
  #cautious = 0;

  /** Begins with the most. */
  constructor(mostMicroseconds: number) {
    this.#most = mostMicroseconds / 1000;
    // A caller that lets waits poll for longer wants them back from threads that compute for less.
    this.#longAbsence = Math.max(this.#most, LONG_ABSENCE_MS);
    this.#least = Math.min(this.#most, MIN_MS);
    this.#milliseconds = this.#most;
  }

  /** How long the next wait polls. */
  get milliseconds(): number {
    return this.#cautious > 0 ? this.#least : this.#milliseconds;
  }

  /** True while polling does not pay, or other threads need the processor: callers should then sleep at once. */
  get isShort(): boolean {
    return this.milliseconds <= this.#least;
  }

  /** Hot path. A wait lent its processor to other threads and has it back after so long. True if it had better sleep. */
  lent(milliseconds: number): boolean {
    if (!this.isLong(milliseconds)) return false;
    this.#cautious = CAUTIOUS_WAITS + 1;
    return true;
  }

  /** Hot path. Whether threads that compute may have had the processor for so long. */
  isLong(milliseconds: number): boolean {
    return milliseconds > this.#longAbsence;
  }

  /** Hot path. A wait took so long, polling and sleeping. Twice as long as a wait that was worth it; half after one that was not. */
  learn(milliseconds: number): void {
    if (this.#cautious > 0) this.#cautious -= 1;
    this.#milliseconds =
      milliseconds <= this.#most
        ? Math.min(this.#most, Math.max(this.#milliseconds, 2 * milliseconds))
        : Math.max(this.#least, this.#milliseconds / 2);
  }
}

/** Processors from which on a thread that polls takes none that another one needs. */
const MANY_PROCESSORS = 8;

/** How long a thread polls for packets before it sleeps, in µs: as set, or what suits the processors of the process. */
export function packetSpinUs({ transportSpinUs }: Settings, processors: number = availableParallelism()): number {
  if (transportSpinUs !== 0) return transportSpinUs;
  return processors >= MANY_PROCESSORS ? 200 : 20;
}
