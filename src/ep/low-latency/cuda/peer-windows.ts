// The windows of an elastic object's ranks in this process: its own, and those of the others, which are mapped when their
// processes come and unmapped when they go. Kernels find them in a table.
import { alignUp, Block, wordOffsets } from '../../../abi/layout.ts';
import { LOW_LATENCY_RESULTS, lowLatencyFlags, lowLatencyMember, lowLatencyPeer } from '../../../abi/low-latency.ts';
import { log } from '../../../core/log.ts';
import { addMeter } from '../../../core/metric-table.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Fence } from '../../../device/cuda/cuda-stream.ts';
import { requirePeerAtomics } from '../../../device/cuda/device-properties.ts';
import type { HostMemory } from '../../../device/cuda/host-memory.ts';
import { type Storage, Tensor } from '../../../device/tensor.ts';
import type { LowLatencySize } from '../low-latency-size.ts';
import {
  COMBINES_PER_DISPATCH,
  LowLatencyCells,
  lowLatencyMapping,
  memberBoardLayout,
} from '../members/low-latency-cells.ts';
import { LowLatencyMembers } from '../members/low-latency-members.ts';
import { addressOf, type Out } from '../../../native/library.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';

// What elastic ranks on GPUs share in memory of the host: who takes part, and how each maps the windows of the others. Kernels
// read it too.

/** Flags of cuMemHostRegister: for all contexts of the process, with an address that kernels use. */
const PORTABLE = 1;
const DEVICE_MAPPED = 2;

const { regions } = memberBoardLayout;
const memberWord = wordOffsets(lowLatencyMember);
const mappedWord = wordOffsets(lowLatencyMapping).mapped;

export class MemberBoard implements Disposable {
  readonly window: SymmetricWindow;
  readonly cells: LowLatencyCells;
  readonly members: LowLatencyMembers;
  /** Address at which kernels find the LowLatencyMember of rank 0, and bytes from there to that of the next rank. */
  readonly address: number;
  readonly stride: number;
  readonly #device: CpuDevice;
  readonly #cuda: CudaDevice;
  readonly #words: Int32Array;
  /** Address in the process. */
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

  /** Number of the window that the rank has now; 0 for none. */
  life(rank: number): number {
    return Math.max(0, this.#lives(rank));
  }

  /** Handle of the rank's present window. */
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

/** What the driver shares at once; smaller allocations would show neighbours to the other processes as well. */
const SHARED_BLOCK = 2 << 20;
const TWO_32 = 2 ** 32;
/** How far behind the present the numbers in a new window begin: behind all that may come, also where numbers wrap. */
const PAST = 1 << 20;

interface Mapped {
  readonly life: number;
  readonly memory: Storage;
}

export class PeerWindows implements Disposable {
  /** This rank's. */
  readonly storage: Storage;
  /** LowLatencyPeer by rank. */
  readonly #table: HostMemory;
  readonly #tableWords: Int32Array;
  readonly #device: CudaDevice;
  readonly #board: MemberBoard;
  readonly #bytes: number;
  readonly #slots: number;
  readonly #unmeter: () => void;
  readonly #mapped = new Map<number, Mapped>();
  /** Mapped until work that may use them has ended. */
  readonly #retired = new Set<{ readonly memory: Storage; readonly fence: Fence }>();

  /** Makes this rank's window, which the device zeroes. Fails with WL_MEMORY. */
  constructor(device: CudaDevice, board: MemberBoard, { bytes, receiveSlots }: LowLatencySize) {
    this.#slots = receiveSlots;
    this.#device = device;
    this.#board = board;
    this.#bytes = bytes;
    this.storage = device.allocateShared(alignUp(Math.max(bytes, 1), SHARED_BLOCK));
    const ranks = board.members.size;
    this.#table = device.allocateHost(ranks * lowLatencyPeer.size);
    this.#tableWords = this.#table.view('i32');
    this.#unmeter = addMeter(() => ({ windowBytes: this.#bytes * (1 + this.#mapped.size) }));
  }

  /** Address at which kernels find the table. */
  get table(): number {
    return this.#table.deviceAddress;
  }

  /** Others may map this rank's window from now on. `reached`: the last dispatch that any rank has begun. */
  async offer(reached: number): Promise<void> {
    const { window } = this.#board;
    if (reached > 0) await this.#beginBehind(reached);
    // No peer may write before the memory is zeroed.
    await this.#device.stream.drained();
    const handle = window.ranks.length === 1 ? '' : this.#device.exportMemory(this.storage);
    const life = this.#board.offerWindow(handle);
    this.#enter(window.index, this.storage.address, life);
  }

  /** Maps what is there and unmaps what is gone; to be called now and then. Fails if a window that is there cannot be mapped. */
  look(): void {
    if (this.#device.context.isCapturing || this.#device.context.disposed) return;
    const { window, members } = this.#board;
    for (let rank = 0; rank < members.size; rank++) {
      if (rank === window.index) continue;
      const isAlive = window.isAlive(rank);
      // It is masked before its window is taken out of the table, so that no kernel waits for one that does not come.
      if (!isAlive && members.isKnown(rank)) members.mask(rank);
      const life = isAlive ? this.#board.life(rank) : 0;
      const mapped = this.#mapped.get(rank);
      if (mapped !== undefined && mapped.life !== life) this.#retire(rank, mapped);
      if (life !== 0 && mapped?.life !== life) this.#map(rank, life);
    }
    for (const retired of this.#retired) {
      if (!retired.fence.isPassed()) continue;
      this.#retired.delete(retired);
      retired.memory[Symbol.dispose]();
    }
  }

  /** The same for callers that try again later. */
  tryLook(): void {
    try {
      this.look();
    } catch (error) {
      log('world', 'warn', `a window of a peer cannot be mapped yet: ${(error as Error).message}`);
    }
  }

  /** Whether that rank and all that take part have mapped each other's windows. */
  isMapped(rank: number): boolean {
    const { window, members } = this.#board;
    const board = this.#board;
    for (let other = 0; other < members.size; other++) {
      if (other === rank || !members.isKnown(other) || !window.isAlive(other)) continue;
      if (board.mappedBy(other, rank) !== board.life(rank)) return false;
      if (board.mappedBy(rank, other) !== board.life(other)) return false;
    }
    return true;
  }

  /** Nothing runs here any more: unmaps the windows of all others, and takes back the offer of this rank's. */
  leave(): void {
    this.#board.withdrawWindow();
    for (const [rank, mapped] of this.#mapped) this.#retire(rank, mapped);
    for (const { memory } of this.#retired) memory[Symbol.dispose]();
    this.#retired.clear();
  }

  /** Whether a living process has this rank's window mapped. */
  get isInUse(): boolean {
    const { window, members } = this.#board;
    for (let rank = 0; rank < members.size; rank++) {
      if (rank === window.index || this.#board.mappedBy(rank, window.index) === 0) continue;
      if (window.isAlive(rank)) return true;
    }
    return false;
  }

  [Symbol.dispose](): void {
    this.#unmeter();
    if (!this.#board.window.storage.disposed) this.leave();
    this.#table[Symbol.dispose]();
    this.storage[Symbol.dispose]();
  }

  #map(rank: number, life: number): void {
    const memory = this.#device.openPeerMemory(this.#board.handleOf(rank), this.#bytes);
    try {
      requirePeerAtomics(this.#device.context, memory.address, 'EpLowLatency');
    } catch (error) {
      memory[Symbol.dispose]();
      throw error;
    }
    this.#mapped.set(rank, { life, memory });
    this.#enter(rank, memory.address, life);
    this.#board.setMapped(rank, life);
  }

  /**
   * A kernel that runs has the address still, also where the peer has died: the mapping keeps the memory until it is closed, and
   * it is closed only behind all work that may have read the table before.
   */
  #retire(rank: number, { memory }: Mapped): void {
    Atomics.store(this.#tableWords, this.#lifeAt(rank), 0);
    this.#mapped.delete(rank);
    this.#retired.add({ memory, fence: this.#device.workFence() });
    this.#board.setMapped(rank, 0);
  }

  /** ORDER: the address, then the life that makes it valid. */
  #enter(rank: number, address: number, life: number): void {
    const at = (rank * lowLatencyPeer.size + lowLatencyPeer.offset.window) / 4;
    Atomics.store(this.#tableWords, at, (address % TWO_32) | 0);
    Atomics.store(this.#tableWords, at + 1, Math.floor(address / TWO_32));
    Atomics.store(this.#tableWords, this.#lifeAt(rank), life);
  }

  #lifeAt(rank: number): number {
    return (rank * lowLatencyPeer.size + lowLatencyPeer.offset.life) / 4;
  }

  /** Words of peers that have written nothing here must not seem to be ahead: numbers are compared by their difference. */
  async #beginBehind(reached: number): Promise<void> {
    const ranks = this.#board.members.size;
    const bytes = new Uint8Array(ranks * lowLatencyFlags.size);
    const past = reached - PAST;
    for (let rank = 0; rank < ranks; rank++) {
      const flags = new Block(lowLatencyFlags, bytes.buffer, rank * lowLatencyFlags.size);
      flags.set('arrived', past);
      flags.set('combined', past * COMBINES_PER_DISPATCH);
      for (let slot = 0; slot < this.#slots; slot++) flags.set('released', past, slot);
      for (let result = 0; result < LOW_LATENCY_RESULTS; result++) {
        flags.set('taken', past * COMBINES_PER_DISPATCH, result);
      }
    }
    await new Tensor(this.storage, 'u8', [bytes.length]).fromHost(bytes);
  }
}
