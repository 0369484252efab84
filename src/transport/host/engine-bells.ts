// How an engine wakes the others of its transport: it notes in their rings that there is news, and rings those that sleep.
import { Doorbell } from '../../native/readiness.ts';
import type { CommandRing } from './command-ring.ts';

export class EngineBells {
  readonly #rings: readonly CommandRing[];
  #bells: readonly Doorbell[] = [];

  /** By engine; the ring of this engine is among them. */
  constructor(rings: readonly CommandRing[]) {
    this.#rings = rings;
  }

  /** The doorbells by engine. They stay open until this engine has ended. */
  meet(descriptors: readonly number[]): void {
    this.#bells = descriptors.map((fd) => Doorbell.of(fd));
  }

  /** Hot path. Tells an engine that what it holds back may go on. */
  ring(engine: number): void {
    const ring = this.#rings[engine] as CommandRing;
    ring.noteFence();
    if (ring.engineSleeps) this.#bells[engine]?.ring();
  }
}
