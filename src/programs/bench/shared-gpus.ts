// What a bench does where ranks share a GPU: kernels of two processes take turns in slices of a millisecond or two, so that
// calls that wait for each other take as long as such slices, whatever the library does.

/** How much a bench measures. */
export interface BenchEffort {
  readonly iterations: number;
  readonly warmup: number;
  readonly pairs: number;
  readonly sms: readonly number[];
  /** True: the bare copies have one usual shape; else the fastest of all that fit is sought. */
  readonly isOneShape: boolean;
}

const FEW_ROUNDS = 3;
const FEW_PAIRS = 4;

/** Enough to see that it runs, within a minute. */
export function effortOnSharedGpus({ iterations, pairs, sms }: BenchEffort): BenchEffort {
  return {
    iterations: Math.min(iterations, FEW_ROUNDS),
    warmup: 0,
    pairs: Math.min(pairs, FEW_PAIRS),
    sms: sms.slice(0, 1),
    isOneShape: true,
  };
}

/** @param sharing Who shares what, of a DeviceChoice: "ranks 0 and 2 share GPU-…". */
export function sharedGpuNotice(sharing: string): string {
  return `${sharing}: the kernels of such ranks take turns in time slices, so the figures mean little; few rounds are run, with one shape of the bare copies. Give each rank a GPU of its own by a lower --ranks`;
}
