// The tensors of a worker in the benchmark, on its device, and the dense sum that sparse ones are compared with.
import { Communicator } from '../../../collectives/index.ts';
import type { TypedArrayOf } from '../../../core/dtype.ts';
import { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { RankGroup } from '../../../world/index.ts';
import type { SparseWorkload } from './sparse-results.ts';

type Values = TypedArrayOf[SparseWorkload['dtype']];

export class BenchTensors implements AsyncDisposable {
  readonly sparse: Tensor;
  readonly communicator: Communicator;
  readonly #device: CpuDevice | CudaDevice;
  readonly #pristine: Tensor;
  readonly #dense: Tensor;
  /** Of GPUs of several hosts, whose dense sums are those of their hosts. */
  readonly #staged: Tensor | undefined;

  /** Collective over the workers. */
  static async create(
    workers: RankGroup,
    device: CpuDevice | CudaDevice,
    workload: SparseWorkload,
  ): Promise<BenchTensors> {
    const isStaged = device.kind === 'cuda' && workers.topology.hosts.length > 1;
    const host = isStaged ? await CpuDevice.create() : device;
    const communicator = await Communicator.create(workers, host);
    const make = (of: CpuDevice | CudaDevice): Tensor => of.empty(workload.dtype, [workload.elements]);
    return new BenchTensors(device, communicator, () => make(device), isStaged ? make(host) : undefined);
  }

  private constructor(
    device: CpuDevice | CudaDevice,
    communicator: Communicator,
    make: () => Tensor,
    staged: Tensor | undefined,
  ) {
    this.#device = device;
    this.communicator = communicator;
    this.#staged = staged;
    this.#pristine = make();
    this.#dense = make();
    this.sparse = make();
  }

  async fill(values: Values): Promise<void> {
    await this.#pristine.fromHost(values);
  }

  /** `sparse` is as the worker had it before any sum. */
  async reset(): Promise<void> {
    const [from, device] = [this.#pristine, this.#device];
    if (device.kind === 'cpu') this.sparse.view().set(from.view() as never);
    else device.context.call('cuMemcpyDtoDAsync', this.sparse.address, from.address, from.bytes, device.stream.handle);
    await this.settle();
  }

  async sumDense(): Promise<void> {
    const staged = this.#staged;
    if (staged === undefined) {
      await this.communicator.allReduce({ input: this.#pristine, output: this.#dense });
      await this.settle();
      return;
    }
    await staged.fromHost(await this.#pristine.toHost());
    await this.communicator.allReduce({ output: staged });
    await this.#dense.fromHost(await staged.toHost());
  }

  /** What was enqueued on the device is done. */
  async settle(): Promise<void> {
    if (this.#device.kind === 'cuda') await this.#device.stream.idle();
  }

  /** Waits for all workers. */
  async meet(): Promise<void> {
    await this.communicator.barrier();
    if (this.#staged === undefined) await this.settle();
  }

  async results(): Promise<{ readonly sparse: Values; readonly dense: Values }> {
    return { sparse: await valuesOf(this.sparse), dense: await valuesOf(this.#dense) };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.communicator.close();
    for (const tensor of [this.#pristine, this.#dense, this.sparse, this.#staged]) tensor?.dispose();
  }
}

/** In place where that can be. */
function valuesOf(tensor: Tensor): Promise<Values> | Values {
  return (tensor.device.kind === 'cpu' ? tensor.view() : tensor.toHost()) as Promise<Values> | Values;
}
