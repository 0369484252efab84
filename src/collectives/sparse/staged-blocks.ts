// Blocks of tensors on a GPU: those that count go out through pinned memory in chunks, each with a mark of its own, so that the
// first messages leave while the rest is being copied; sums come in through chunks that are scattered as they fill.
import { SPARSE_NO_BLOCK } from '../../abi/collectives.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { MemoryRange } from '../../device/tensor.ts';
import { type CompletionFlag, StagedFlag, type TensorBlocks } from './block-reducer.ts';
import { type BlockIndex, type BlockWork, type SharedBytes, type WorkMark, WorkPatience } from './block-work.ts';
import { blocksOf, infinityOf, type SlotShape, strideOf } from './slot-shape.ts';
import { noCall, type SparseCall } from './sparse-call.ts';

/** Bytes of the chunks in which blocks go out, as long as these are not too many. */
const CHUNK_BYTES = 1 << 20;
const OUT_CHUNKS = 64;
/** Pinned memory is taken in pieces, and kept. */
const PIECE_BYTES = 16 << 20;
/** Chunks of sums that are filled or under way. */
const IN_CHUNKS = 8;
const WORD_BYTES = 4;

interface Piece {
  readonly memory: SharedBytes;
  readonly bytes: Uint8Array;
}

/** Sums on their way in, and which blocks they are. */
interface SumChunk extends Piece {
  readonly list: Uint32Array;
  readonly mark: WorkMark;
}

interface StagedBlocksOptions {
  readonly shape: SlotShape;
  /** The host's device: all messages lie there. */
  readonly host: CpuDevice;
  readonly messages: MemoryRange;
  /** Bytes of the longest elements. */
  readonly maxElementBytes: number;
}

export class StagedBlocks implements TensorBlocks {
  ownBlocks = 0;
  readonly #work: BlockWork;
  readonly #shape: SlotShape;
  readonly #stride: number;
  readonly #infinity: number;
  /** All messages, and where they begin. */
  readonly #messages: Uint8Array;
  readonly #base: number;
  readonly #pieces: Piece[] = [];
  readonly #sums: readonly SumChunk[];
  /** Blocks of the longest elements that a chunk of sums takes. */
  readonly #sumBlocks: number;
  readonly #marked: WorkMark;
  readonly #outMarks: readonly WorkMark[];
  #index: BlockIndex | undefined;
  #reserved = 0;
  #call: SparseCall = noCall;
  #blocks = 0;
  #blockBytes = 0;
  #state: 'idle' | 'marking' | 'marked' = 'idle';
  readonly #patience = new WorkPatience();
  /** Counts of blocks that go out: so many in a chunk and a piece; chunks that have come. */
  #perChunk = 1;
  #perPiece = 1;
  #chunks = 0;
  #come = 0;
  /** The chunk of sums that is being filled, and how many it has. */
  #filling = 0;
  #filled = 0;
  #isJoined = true;

  /** Fails with WL_MEMORY. */
  constructor(work: BlockWork, { shape, host, messages, maxElementBytes }: StagedBlocksOptions) {
    this.#work = work;
    this.#shape = shape;
    this.#stride = strideOf(shape);
    this.#infinity = infinityOf(shape);
    this.#messages = host.hostView('u8', messages.address, messages.bytes);
    this.#base = messages.address;
    this.#marked = work.makeMark('out');
    this.#outMarks = Array.from({ length: OUT_CHUNKS }, () => work.makeMark('out'));
    const blockBytes = shape.blockSize * maxElementBytes;
    // A message is taken whole.
    this.#sumBlocks = Math.max(shape.lanes, Math.floor(CHUNK_BYTES / blockBytes));
    const listAt = this.#sumBlocks * blockBytes;
    this.#sums = Array.from({ length: IN_CHUNKS }, () => {
      const memory = work.allocateHost(listAt + this.#sumBlocks * WORD_BYTES);
      const bytes = new Uint8Array(memory.buffer, 0, listAt);
      const list = new Uint32Array(memory.buffer, listAt, this.#sumBlocks);
      return { memory, bytes, list, mark: work.makeMark('in') };
    });
  }

  reserve(count: number): void {
    const blocks = blocksOf(this.#shape, count);
    if (this.#index !== undefined && blocks <= this.#reserved) return;
    // If it fails the former one is gone as well.
    this.#index = undefined;
    this.#index = this.#work.reserve(blocks);
    this.#reserved = blocks;
  }

  begin(call: SparseCall): void {
    this.#call = call;
    this.#blocks = blocksOf(this.#shape, call.count);
    this.#blockBytes = this.#shape.blockSize * call.elementBytes;
    this.#patience.reset();
    this.#filled = 0;
    this.#isJoined = false;
    this.ownBlocks = 0;
    this.#work.begin(call, this.#blocks);
    this.#state = 'marking';
    if (call.isDense || this.#blocks === 0) {
      this.#beginCopies(this.#blocks);
      return;
    }
    this.#work.mark();
    this.#marked.record();
  }

  isMarked(): boolean {
    if (this.#state === 'marked') return true;
    if (!this.#isDone(this.#marked)) return false;
    this.#beginCopies(this.#index!.found[0]!);
    return true;
  }

  has(block: number): boolean {
    return this.#call.isDense || this.#index!.numbers[block] !== SPARSE_NO_BLOCK;
  }

  next(block: number): number {
    if (!this.#call.isDense) return this.#index!.nexts[block]!;
    const next = block + this.#stride;
    return next < this.#blocks ? next : this.#infinity + (block % this.#stride);
  }

  isReady(block: number): boolean {
    const chunk = Math.floor(this.#numberOf(block) / this.#perChunk);
    while (this.#come <= chunk && this.#isDone(this.#outMarks[this.#come]!)) this.#come++;
    return this.#come > chunk;
  }

  copyOut(to: number, block: number, run: number): void {
    const blockBytes = this.#blockBytes;
    let number = this.#numberOf(block);
    let at = to - this.#base;
    for (let left = run; left > 0;) {
      const within = number % this.#perPiece;
      const some = Math.min(left, this.#perPiece - within);
      const { bytes } = this.#pieces[Math.floor(number / this.#perPiece)]!;
      this.#messages.set(bytes.subarray(within * blockBytes, (within + some) * blockBytes), at);
      number += some;
      at += some * blockBytes;
      left -= some;
    }
    const { count, elementBytes } = this.#call;
    const missing = (block + run) * blockBytes - count * elementBytes;
    if (missing > 0) this.#messages.fill(0, at - missing, at);
  }

  hasRoom(blocks: number): boolean {
    if (this.#filled + blocks > this.#sumBlocks) this.#scatter();
    // A chunk is free again when what it held was scattered.
    return this.#filled > 0 || this.#isDone(this.#sums[this.#filling]!.mark);
  }

  copyIn(from: number, block: number, run: number): void {
    const { bytes, list } = this.#sums[this.#filling]!;
    const at = from - this.#base;
    const blockBytes = this.#blockBytes;
    bytes.set(this.#messages.subarray(at, at + run * blockBytes), this.#filled * blockBytes);
    for (let index = 0; index < run; index++) list[this.#filled++] = block + index;
  }

  finish(): boolean {
    if (this.#isJoined) return true;
    this.#scatter();
    this.#work.join();
    this.#isJoined = true;
    return true;
  }

  flagAt(address: number): CompletionFlag {
    return new StagedFlag({
      tell: (parts) => {
        this.#scatter();
        this.#work.tell(address, parts);
      },
      join: () => this.#work.join(),
    });
  }

  async close(): Promise<void> {
    await this.#work.close();
    for (const { memory } of [...this.#pieces, ...this.#sums]) memory[Symbol.dispose]();
    this.#pieces.length = 0;
  }

  /** The number of a block among those that count. */
  #numberOf(block: number): number {
    return this.#call.isDense ? block : this.#index!.numbers[block]!;
  }

  /** Enqueues all of them at once: nothing else has to go this way. */
  #beginCopies(ownBlocks: number): void {
    const blockBytes = this.#blockBytes;
    this.ownBlocks = ownBlocks;
    this.#state = 'marked';
    const least = Math.ceil(ownBlocks / OUT_CHUNKS);
    this.#perChunk = Math.max(1, least, Math.floor(CHUNK_BYTES / blockBytes));
    this.#perPiece = Math.max(1, Math.floor(PIECE_BYTES / blockBytes));
    this.#chunks = Math.ceil(ownBlocks / this.#perChunk);
    this.#come = 0;
    const pieces = Math.ceil(ownBlocks / this.#perPiece);
    while (this.#pieces.length < pieces) {
      const memory = this.#work.allocateHost(PIECE_BYTES);
      this.#pieces.push({ memory, bytes: new Uint8Array(memory.buffer, 0, PIECE_BYTES) });
    }
    for (let chunk = 0; chunk < this.#chunks; chunk++) {
      const end = Math.min(ownBlocks, (chunk + 1) * this.#perChunk);
      for (let first = chunk * this.#perChunk; first < end;) {
        const within = first % this.#perPiece;
        const count = Math.min(end - first, this.#perPiece - within);
        const { memory } = this.#pieces[Math.floor(first / this.#perPiece)]!;
        this.#work.gather(first, { packed: memory.deviceAddress + within * blockBytes, count });
        first += count;
      }
      this.#outMarks[chunk]!.record();
    }
  }

  /** What the present chunk holds is on its way. */
  #scatter(): void {
    if (this.#filled === 0) return;
    const { memory, bytes, mark } = this.#sums[this.#filling]!;
    this.#work.scatter(memory.deviceAddress + bytes.length, { packed: memory.deviceAddress, count: this.#filled });
    mark.record();
    this.#filling = (this.#filling + 1) % IN_CHUNKS;
    this.#filled = 0;
  }

  /** Fails when the device takes longer than the call may. */
  #isDone(mark: WorkMark): boolean {
    return this.#patience.isDone(mark, this.#call.timeoutMs);
  }
}
