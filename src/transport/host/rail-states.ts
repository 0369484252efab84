// How the rails of a connection stand: how many of the paths of each live, and since when none does.
import type { RailPair } from '../io/packet-io.ts';

/** Two addresses between which packets go, and whether they pass. */
export interface RailState extends RailPair {
  /** False while every path of it is dead: nothing that went there was answered, and only probes go there. */
  readonly isUp: boolean;
  /** Since when it is not up, as far as this side has tried to send; left out while it is up. */
  readonly deadSince?: Date;
  /** UDP sockets or queue pairs of each side, over all engines. */
  readonly paths: number;
  readonly livePaths: number;
}

export class RailStates {
  readonly #rails: readonly RailPair[];
  /** Of each lane: path p goes by rail p modulo the number of rails. */
  readonly #pathsOfLane: number;
  /** By lane and path: when it died, in ms; 0 while it lives. */
  readonly #deadSince: Float64Array;

  constructor(rails: readonly RailPair[], lanes: number, paths: number) {
    this.#rails = rails;
    this.#pathsOfLane = paths / lanes;
    this.#deadSince = new Float64Array(paths);
  }

  /** `deadSince`: 0 if the path lives again. */
  note(lane: number, path: number, deadSince: number): void {
    this.#deadSince[lane * this.#pathsOfLane + path] = deadSince;
  }

  get all(): readonly RailState[] {
    const count = this.#rails.length;
    return this.#rails.map((pair, rail) => {
      const deaths = [...this.#deadSince].filter((_, path) => (path % this.#pathsOfLane) % count === rail);
      const livePaths = deaths.filter((since) => since === 0).length;
      const facts = { ...pair, isUp: livePaths > 0, paths: deaths.length, livePaths };
      return facts.isUp || deaths.length === 0 ? facts : { ...facts, deadSince: new Date(Math.max(...deaths)) };
    });
  }
}
