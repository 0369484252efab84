// How many rows a low-latency object on a GPU was offered beyond the capacity of its experts, for metrics: its kernels count them.
import { countOverflow } from '../../../core/counts.ts';
import { addSamples } from '../../../core/samples.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { HostMemory } from '../../../device/cuda/host-memory.ts';

export class DroppedRows implements Disposable {
  readonly #memory: HostMemory;
  readonly #policy: 'drop' | 'fail';
  readonly #forget: () => void;

  constructor(device: CudaDevice, policy: 'drop' | 'fail') {
    this.#memory = device.allocateHost(8);
    this.#policy = policy;
    this.#forget = addSamples(() => {
      const value = this.rows;
      return value === 0 ? [] : [{ name: 'weftline_ep_overflow_total', labels: [policy], value }];
    });
  }

  /** For the kernels. */
  get address(): number {
    return this.#memory.deviceAddress;
  }

  get rows(): number {
    return this.#memory.disposed ? 0 : Number(new BigUint64Array(this.#memory.buffer, 0, 1)[0]);
  }

  /** What was counted stays so. */
  [Symbol.dispose](): void {
    if (this.#memory.disposed) return;
    this.#forget();
    countOverflow(this.#policy, this.rows);
    this.#memory[Symbol.dispose]();
  }
}
