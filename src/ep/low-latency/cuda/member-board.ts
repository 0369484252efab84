// What elastic ranks on GPUs share in memory of the host: who takes part, and how each maps the windows of the others. Kernels
// read it too.
import { wordOffsets } from '../../../abi/layout.ts';
import { lowLatencyMember } from '../../../abi/low-latency.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { addressOf, type Out } from '../../../native/library.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import { LowLatencyCells } from '../members/low-latency-cells.ts';
import { LowLatencyMembers } from '../members/low-latency-members.ts';
import { lowLatencyMapping, memberBoardLayout } from './member-board-layout.ts';

/** Of cuMemHostRegister: for all contexts of the process, with an address that kernels use. */
const PORTABLE = 1;
const DEVICE_MAPPED = 2;

const { regions } = memberBoardLayout;
const memberWord = wordOffsets(lowLatencyMember);
const mappedWord = wordOffsets(lowLatencyMapping).mapped;

export class MemberBoard implements Disposable {
  readonly window: SymmetricWindow;
  readonly cells: LowLatencyCells;
  readonly members: LowLatencyMembers;
  /** Where kernels find the LowLatencyMember of rank 0, and bytes from there to that of the next rank. */
  readonly address: number;
  readonly stride: number;
  readonly #device: CpuDevice;
  readonly #cuda: CudaDevice;
  readonly #words: Int32Array;
  /** In the process. */
  readonly #hostAddress: number;

  /** Pins the window, which is the board's from then on if that succeeds. Fails with WL_CUDA. */
  constructor(cuda: CudaDevice, device: CpuDevice, window: SymmetricWindow) {
    const { storage } = window;
    this.#device = device;
    this.#cuda = cuda;
    this.window = window;
    this.#words = device.hostView('i32', storage.address, storage.bytes / 4);
    this.#hostAddress = Number(addressOf(device.hostView('u8', storage.address, storage.bytes)));
    cuda.context.call('cuMemHostRegister', this.#hostAddress, storage.bytes, PORTABLE | DEVICE_MAPPED);
    const mapped: Out = [0];
    cuda.context.call('cuMemHostGetDevicePointer', mapped, this.#hostAddress, 0);
    this.address = mapped[0] + (window.addresses[0]! - storage.address) + regions.member.offset;
    this.stride = window.offsetOf(1);
    this.cells = new LowLatencyCells(device, window, { regions });
    this.members = new LowLatencyMembers(device, window, { regions, hasMarks: true }, this.cells);
  }

  /** Which of its windows the rank has now; 0 for none. */
  life(rank: number): number {
    return Math.max(0, this.#lives(rank));
  }

  /** Of the window of that life. */
  handleOf(rank: number): string {
    return Buffer.from(this.#handle(rank)).toString('base64');
  }

  /** This rank has a window, and says how it is mapped. Returns its life, which none of its windows had before. */
  offerWindow(handle: string): number {
    const { index } = this.window;
    const life = Math.abs(this.#lives(index)) + 1;
    this.#handle(index).set(Buffer.from(handle, 'base64'));
    Atomics.store(this.#words, this.#word(index, 'member') + memberWord.life, life);
    return life;
  }

  /** This rank's window goes: others should map it no longer. */
  withdrawWindow(): void {
    const { index } = this.window;
    Atomics.store(this.#words, this.#word(index, 'member') + memberWord.life, -Math.abs(this.#lives(index)));
  }

  /** The last dispatch that any rank has begun. */
  get reached(): number {
    let last = 0;
    for (let rank = 0; rank < this.members.size; rank++) {
      const reached = this.cells.reached(rank, 'dispatched');
      if (((reached - last) | 0) > 0) last = reached;
    }
    return last;
  }

  /** The life of the window of `of` that the rank has mapped; 0 for none. */
  mappedBy(rank: number, of: number): number {
    return Atomics.load(this.#words, this.#word(rank, 'mapping') + mappedWord + of);
  }

  setMapped(of: number, life: number): void {
    Atomics.store(this.#words, this.#word(this.window.index, 'mapping') + mappedWord + of, life);
    // Whoever waits for it.
    this.cells.bells.ringAll();
  }

  [Symbol.dispose](): void {
    this.#cuda.context.release('cuMemHostUnregister', this.#hostAddress);
    this.window[Symbol.dispose]();
  }

  /** How many windows it has had, negative while it has none. */
  #lives(rank: number): number {
    return Atomics.load(this.#words, this.#word(rank, 'member') + memberWord.life);
  }

  /** Index in `#words`. */
  #word(rank: number, region: 'member' | 'mapping'): number {
    const { addresses, storage } = this.window;
    return (addresses[rank]! - storage.address + regions[region].offset) / 4;
  }

  #handle(rank: number): Uint8Array {
    const { handle } = lowLatencyMapping.offset;
    const { count } = lowLatencyMapping.fields.handle as { readonly count: number };
    return this.#device.hostView('u8', this.window.addresses[rank]! + regions.mapping.offset + handle, count);
  }
}
