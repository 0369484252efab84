// What the thread that watches an RDMA device is told.

/** Numbers of the descriptors in its set. */
export const readinessNumbers = { doorbell: 0, completions: 1, events: 2 } as const;

export interface RdmaWatchOptions {
  /** rdmaWatchWords. */
  readonly words: SharedArrayBuffer;
  /** Descriptor of the set that the agent's thread has made. */
  readonly readiness: number;
  /** Native address of the completion channel; 0 if there is none. */
  readonly channel: number;
  /** Descriptors of completions. */
  readonly completions: readonly number[];
  /** Descriptor of asynchronous events. */
  readonly events: number;
  /** The memory of the WakeWord, which is rung for everything that happens. */
  readonly wake: SharedArrayBuffer;
}
