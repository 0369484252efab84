// Copies between ordinary host memory and the device, through two pieces of pinned memory in turn.
import { WeftlineError } from '../../core/errors.ts';
import type { CudaContext } from './cuda-context.ts';
import { CudaEvent } from './cuda-event.ts';
import type { CudaStream } from './cuda-stream.ts';
import { HostMemory } from './host-memory.ts';

/** One piece is copied by the host in well under a millisecond. */
const PIECE_BYTES = 2 << 20;

interface Piece {
  readonly memory: HostMemory;
  readonly bytes: Uint8Array;
  readonly event: CudaEvent;
  /** What the host does with the piece once its copy is done. */
  finish: (() => void) | undefined;
}

export class HostCopy {
  readonly #context: CudaContext;
  readonly #stream: CudaStream;
  readonly #timeoutMs: number;
  #pieces: readonly Piece[] | undefined;
  /** Copies run one after another: they share the pieces. */
  #tail: Promise<unknown> = Promise.resolve();

  /** Copies are enqueued on `stream`, so they follow what was launched there before. */
  constructor(context: CudaContext, stream: CudaStream, timeoutMs: number) {
    this.#context = context;
    this.#stream = stream;
    this.#timeoutMs = timeoutMs;
  }

  /** Resolves when the bytes are in device memory. */
  toDevice(address: number, source: Uint8Array): Promise<void> {
    return this.#inTurn(async () => {
      for (let offset = 0, turn = 0; offset < source.length; offset += PIECE_BYTES, turn ^= 1) {
        const piece = await this.#claim(turn);
        const part = source.subarray(offset, offset + PIECE_BYTES);
        piece.bytes.set(part);
        const { hostAddress } = piece.memory;
        this.#context.call('cuMemcpyHtoDAsync', address + offset, hostAddress, part.length, this.#stream.handle);
        this.#mark(piece);
      }
      await this.#finishAll();
    });
  }

  /** Resolves when the bytes are in host memory. */
  fromDevice(target: Uint8Array, address: number): Promise<void> {
    return this.#inTurn(async () => {
      for (let offset = 0, turn = 0; offset < target.length; offset += PIECE_BYTES, turn ^= 1) {
        const piece = await this.#claim(turn);
        const part = target.subarray(offset, offset + PIECE_BYTES);
        const { hostAddress } = piece.memory;
        this.#context.call('cuMemcpyDtoHAsync', hostAddress, address + offset, part.length, this.#stream.handle);
        piece.finish = () => part.set(piece.bytes.subarray(0, part.length));
        this.#mark(piece);
      }
      await this.#finishAll();
    });
  }

  #inTurn(copy: () => Promise<void>): Promise<void> {
    this.#context.refuseCapture('a copy between the host and the device, which the host waits for,');
    const turn = this.#tail.then(copy);
    this.#tail = turn.catch(() => undefined);
    return turn;
  }

  #mark(piece: Piece): void {
    this.#context.workCount += 1;
    piece.event.record(this.#stream);
  }

  /** Waits until the last copy of this piece is done, and finishes it. */
  async #claim(turn: number): Promise<Piece> {
    this.#pieces ??= [this.#createPiece(), this.#createPiece()];
    const piece = this.#pieces[turn];
    if (piece === undefined) throw new WeftlineError('WL_INTERNAL', `There is no piece ${turn}`);
    await piece.event.wait({ timeoutMs: this.#timeoutMs });
    piece.finish?.();
    piece.finish = undefined;
    return piece;
  }

  async #finishAll(): Promise<void> {
    await this.#claim(0);
    await this.#claim(1);
  }

  #createPiece(): Piece {
    const memory = new HostMemory(this.#context, PIECE_BYTES);
    const event = new CudaEvent(this.#context, { timing: false, timeoutMs: this.#timeoutMs });
    return { memory, bytes: memory.view('u8'), event, finish: undefined };
  }
}
