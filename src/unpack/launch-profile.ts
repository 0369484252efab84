// What launches took, added up.

/** Sums over all launches of a launcher; times in µs. */
export interface LaunchTimes {
  readonly launches: number;
  readonly blocks: number;
  /** Without empty ones. */
  readonly fragments: number;
  readonly bytes: number;
  /** Of the host: checking the blocks and writing them into the ring. */
  readonly checkMicroseconds: number;
  /** Of the host: handing the work to the device; on the CPU device moving the fragments too. */
  readonly submitMicroseconds: number;
  /** Of the device, for launches that are known to be done. */
  readonly deviceMicroseconds: number;
}

export class LaunchProfile {
  deviceMicroseconds = 0;
  #launches = 0;
  #blocks = 0;
  #fragments = 0;
  #bytes = 0;
  #checkMs = 0;
  #submitMs = 0;

  /** To be called when the launch is submitted; the times are those of performance.now(). */
  add(
    moved: { readonly fragments: number; readonly totalBytes: number },
    { blocks, begin, checked }: { readonly blocks: number; readonly begin: number; readonly checked: number },
  ): void {
    this.#launches += 1;
    this.#blocks += blocks;
    this.#fragments += moved.fragments;
    this.#bytes += moved.totalBytes;
    this.#checkMs += checked - begin;
    this.#submitMs += performance.now() - checked;
  }

  times(): LaunchTimes {
    return {
      launches: this.#launches,
      blocks: this.#blocks,
      fragments: this.#fragments,
      bytes: this.#bytes,
      checkMicroseconds: this.#checkMs * 1000,
      submitMicroseconds: this.#submitMs * 1000,
      deviceMicroseconds: this.deviceMicroseconds,
    };
  }
}
