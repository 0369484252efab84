// A window that never changes; infinite, it is no congestion control at all.
import type { Congestion } from './congestion.ts';

export class FixedWindow implements Congestion {
  readonly windowBytes: number;
  readonly rate = Number.POSITIVE_INFINITY;

  constructor(windowBytes: number) {
    this.windowBytes = windowBytes;
  }

  allowance(inFlight: number): number {
    return this.windowBytes - inFlight;
  }

  onSend(): void {}
  onAck(): void {}
  onLoss(): void {}
  onTimeout(): void {}
}
