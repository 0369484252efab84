// What EpBuffer.create() takes besides the configuration that all ranks share.
import type { OptionNames } from '../../core/check-options.ts';
import type { WaitOptions } from '../../core/deadline.ts';
import type { Tensor } from '../../device/tensor.ts';

/** Options of EpBuffer.create(). */
export interface EpBufferOptions extends WaitOptions {
  /**
   * Memory of this rank's CPU device for the network side, `bufferSize(…).network.bytes` at least: [bytes]. Peers write to it
   * until the buffer is closed; it stays the caller's, who disposes it after that. Made by the buffer if it is absent, and not
   * used on one host.
   */
  readonly rdmaBuffer?: Tensor<'u8'>;
}

export const epBufferOptionNames: OptionNames<EpBufferOptions> = { rdmaBuffer: true, timeoutMs: true, signal: true };
