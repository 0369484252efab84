// A DeviceHost's side of the CPU: queues in shared memory, kernels are functions of TypeScript.
import { invalidArgument, type WeftlineError } from '../../core/errors.ts';
import type { Tensor } from '../../device/tensor.ts';
import { addressOf, viewAt } from '../../native/library.ts';
import { isOwnMemory } from '../../native/own-memory.ts';
import { queueBytes } from '../service/command-queue.ts';
import { CpuKernelApi } from './cpu-kernel-api.ts';
import type { DeviceHalf, DeviceHalfOptions } from './device-half.ts';
import type { ProxyService } from '../service/proxy-service.ts';
import type { Allocation } from '../service/proxy-messages.ts';
import { queuesIn } from '../service/queue-layout.ts';
import type { RequestShape } from '../service/request-shape.ts';

export interface CpuHalfOptions extends DeviceHalfOptions {
  readonly service: ProxyService;
}

export class CpuHalf implements DeviceHalf {
  readonly deviceId = 0;
  readonly ordinal = undefined;
  readonly kernelApi: CpuKernelApi;
  readonly waits = 0;
  readonly queueMemory: SharedArrayBuffer;
  readonly #service: ProxyService;
  #failure: WeftlineError | undefined;

  constructor(options: CpuHalfOptions) {
    const { queues, capacity } = options;
    this.queueMemory = new SharedArrayBuffer(queues * queueBytes(capacity));
    this.#service = options.service;
    this.kernelApi = new CpuKernelApi({
      agent: options.agent,
      queues: queuesIn(this.queueMemory, queues, capacity),
      timeoutMs: options.timeoutMs,
      requests: options.requests,
      peerName: options.peerName,
      failure: () => this.#failure,
      wake: () => options.service.wake(),
    });
  }

  async allocate(bytes: number): Promise<Allocation> {
    return this.#service.allocate(bytes);
  }

  /** A tensor's own address is an offset in the memory of its device. */
  addressOf(tensor: Tensor): number {
    if (tensor.device.kind === 'cpu') return Number(addressOf(tensor.view()));
    throw invalidArgument('memory', `a tensor of a ${tensor.device.kind} device`, 'one of a CpuDevice');
  }

  owns(address: number, bytes: number): boolean {
    return isOwnMemory(address, bytes);
  }

  pin(address: number): number {
    return address;
  }

  unpin(): void {
    this.kernelApi.close();
  }

  isFar(): boolean {
    return false;
  }

  view({ address, bytes }: { readonly address: number; readonly bytes: number }): Uint8Array {
    return new Uint8Array(viewAt(address, bytes));
  }

  read(memory: { readonly address: number; readonly bytes: number }): Promise<Uint8Array> {
    return Promise.resolve(this.view(memory).slice());
  }

  write(address: number, values: Uint8Array): Promise<void> {
    this.view({ address, bytes: values.length }).set(values);
    return Promise.resolve();
  }

  exportMemory(): undefined {
    return undefined;
  }

  map(): string {
    return 'the CPU writes through its queue';
  }

  addRequest(request: RequestShape): Promise<number> {
    return Promise.resolve(request.number);
  }

  removeRequest(): void {}

  release(): void {}

  abort(error: WeftlineError): void {
    this.#failure ??= error;
  }

  throwIfFailed(): void {
    const failure = this.#failure;
    if (failure === undefined) return;
    this.#failure = undefined;
    this.kernelApi.forgetFailures();
    throw failure;
  }

  [Symbol.dispose](): void {}
}
