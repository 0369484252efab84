// What kernels find in device memory: the state of their host, its queues and its requests.
import { commandQueueHead, deviceHostState, deviceQueue, deviceRemote, deviceRequest } from '../../abi/device-api.ts';
import { Block, type Layout } from '../../abi/layout.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { HostMemory } from '../../device/cuda/host-memory.ts';
import type { Tensor } from '../../device/tensor.ts';
import { queueBytes, type RequestShape } from './command-queue.ts';

interface CudaRequestsOptions {
  readonly device: CudaDevice;
  /** TrapRecord, as the device sees it. */
  readonly trap: number;
  readonly timeoutMs: number;
  readonly queues: number;
  readonly capacity: number;
}

export class CudaRequests implements Disposable {
  readonly #device: CudaDevice;
  readonly #rings: HostMemory;
  readonly #memory: readonly Tensor<'u8'>[];
  /** Requests by handle. */
  readonly #requests = new Map<number, readonly Tensor<'u8'>[]>();
  readonly #options: CudaRequestsOptions;

  /** Address of DeviceHostState, for waits. */
  readonly state: number;

  static async create(options: CudaRequestsOptions): Promise<CudaRequests> {
    const { device, queues, capacity } = options;
    const rings = device.allocateHost(queues * queueBytes(capacity));
    const queueTable = await upload(device, deviceQueue, queues, (block, index) => {
      block.set('capacity', capacity);
      block.set('capacityBits', Math.log2(capacity));
      block.set('host', rings.deviceAddress + index * queueBytes(capacity));
    });
    const state = await upload(device, deviceHostState, 1, (block) => {
      block.set('trap', options.trap);
      block.set('timeoutNs', options.timeoutMs * 1e6);
      block.set('queues', queueTable.address);
      block.set('queueCount', queues);
    });
    return new CudaRequests(options, rings, [queueTable, state]);
  }

  private constructor(options: CudaRequestsOptions, rings: HostMemory, memory: readonly [Tensor<'u8'>, Tensor<'u8'>]) {
    this.#options = options;
    this.#device = options.device;
    this.#rings = rings;
    this.#memory = memory;
    this.state = memory[1].address;
  }

  /** Address of the queues in this process, and how they lie there. */
  get rings(): { readonly address: number; readonly bytes: number } {
    return { address: this.#rings.hostAddress, bytes: this.#rings.bytes };
  }

  /** The queues in place. */
  get buffer(): ArrayBuffer {
    return this.#rings.buffer;
  }

  /** Forgets failures, once no kernel runs that could still see them. */
  clearFailures(): void {
    const { queues, capacity } = this.#options;
    for (let index = 0; index < queues; index += 1) {
      const word = (index * queueBytes(capacity) + commandQueueHead.offset.failed) / 4;
      Atomics.store(this.#rings.view('i32'), word, 0);
    }
  }

  /** The handle of a request that kernels use, valid until it is removed. */
  async add(request: RequestShape): Promise<number> {
    const remotes = await upload(this.#device, deviceRemote, request.remotes.length, (block, index) => {
      const { direct, bytes } = request.remotes[index]!;
      block.set('direct', direct);
      block.set('bytes', bytes);
    });
    const tensor = await upload(this.#device, deviceRequest, 1, (block) => {
      block.set('host', this.state);
      block.set('local', request.local.address);
      block.set('localBytes', request.local.bytes);
      block.set('firstDirect', request.remotes[0]?.direct ?? 0);
      block.set('firstBytes', request.remotes[0]?.bytes ?? 0);
      block.set('remotes', remotes.address);
      block.set('remoteCount', request.remotes.length);
      block.set('number', request.number);
      block.set('peer', request.peer);
      block.set('inlines', request.inlines ? 1 : 0);
    });
    this.#requests.set(tensor.address, [remotes, tensor]);
    return tensor.address;
  }

  remove(handle: number): void {
    for (const tensor of this.#requests.get(handle) ?? []) tensor.close();
    this.#requests.delete(handle);
  }

  [Symbol.dispose](): void {
    for (const handle of this.#requests.keys()) this.remove(handle);
    for (const tensor of this.#memory) tensor.close();
    this.#rings[Symbol.dispose]();
  }
}

async function upload<Name extends string>(
  device: CudaDevice,
  layout: Layout<Name>,
  count: number,
  fill: (block: Block<Name>, index: number) => void,
): Promise<Tensor<'u8'>> {
  const bytes = new Uint8Array(layout.size * count);
  for (let index = 0; index < count; index += 1) fill(new Block(layout, bytes.buffer, index * layout.size), index);
  return device.tensor('u8', [bytes.length], bytes);
}
