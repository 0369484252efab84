// A window that never changes; infinite, it is no congestion control at all.
import type { Congestion, CongestionRule } from './congestion.ts';

export const fixed: CongestionRule = {
  summary: 'a window that never changes',
  create: ({ maxWindow }) => new FixedWindow(maxWindow),
};

export const none: CongestionRule = {
  summary: 'no bound',
  create: () => new FixedWindow(Number.POSITIVE_INFINITY),
};

/** EQDS (Olteanu et al., NSDI 2022): the receiver's credits decide, at the speed of its link; the window only bounds them. */
export const eqds: CongestionRule = {
  summary: 'by credits of the receiver alone',
  receiverCredits: true,
  create: ({ maxWindow }) => new FixedWindow(maxWindow),
};

class FixedWindow implements Congestion {
  readonly windowBytes: number;
  readonly rate = Number.POSITIVE_INFINITY;

  constructor(windowBytes: number) {
    this.windowBytes = windowBytes;
  }

  onAck(): void {}
  onLoss(): void {}
  onTimeout(): void {}
}
