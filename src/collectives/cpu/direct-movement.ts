// A large allToAll between ranks of one host: each reads its parts where they lie, out of the tensors of the others.
//
// First all tell where their tensors are; then they read, and tell that they have. A rank whose call is in place cannot let
// others read its tensor while it receives into it: then all see that, and move the call through the window instead.
import { atOnce, type Movement, type MovementStep, type Piece, PART_ALIGNMENT, type SlotRange } from './movements.ts';
import type { PeerMemory } from '../../group/peer-memory.ts';

/** Of ranks that can read each other's tensors. */
export interface DirectReads {
  readonly memory: PeerMemory;
  /** Bytes of a rank's tensor, above which it pays. */
  readonly fromBytes: number;
  /** Fails with the reason if a rank gave up the window. */
  throwIfUnusable(): void;
}

/** In place of an address: the call is in place. No tensor lies there. */
const IN_PLACE = 0;

const staged = atOnce.allToAll;
const stagedStep = staged.steps[0]!;

export class DirectMovement implements Movement, MovementStep {
  readonly hasParts = true;
  readonly steps: readonly MovementStep[] = [this];
  readonly #direct: DirectReads;
  readonly #onPhase: (unitBytes: number) => void;
  #phase: 'addresses' | 'done' | 'staged' = 'addresses';

  /** `onPhase` is told the bytes that each part has in the next phase. */
  constructor(direct: DirectReads, onPhase: (unitBytes: number) => void) {
    this.#direct = direct;
    this.#onPhase = onPhase;
  }

  /** Hot path. Whether all ranks move an allToAll of so many bytes this way. */
  takes(bytes: number): boolean {
    return bytes > this.#direct.fromBytes;
  }

  begin(): void {
    this.#phase = 'addresses';
  }

  stages(): boolean {
    return this.#phase !== 'done';
  }

  awaits(): 'all' {
    return 'all';
  }

  stage(piece: Piece): void {
    if (this.#phase === 'staged') {
      staged.stage(piece);
      return;
    }
    const { me, call, words, wordOf } = piece;
    words[wordOf(me)] = call.input === call.output ? IN_PLACE : call.input;
  }

  reads(piece: Piece, rank: number, range: SlotRange): void {
    if (this.#phase === 'staged') {
      stagedStep.reads(piece, rank, range);
      return;
    }
    range.first = 0;
    range.bytes = this.#phase === 'addresses' ? 4 : 0;
  }

  take(piece: Piece): void {
    if (this.#phase === 'staged') stagedStep.take(piece);
    else if (this.#phase === 'addresses') this.#takeAddresses(piece);
  }

  #takeAddresses({ mover, ranks, me, call, elementBytes, words, wordOf }: Piece): void {
    let isDirect = true;
    for (let rank = 0; rank < ranks; rank++) isDirect &&= words[wordOf(rank)] !== IN_PLACE;
    const bytes = call.count * elementBytes;
    if (!isDirect) {
      this.#phase = 'staged';
      this.#onPhase(bytes);
      return;
    }
    const { input, output } = call;
    mover.copy(output + me * bytes, input + me * bytes, bytes);
    // Each begins with its neighbour, so that not all read the same tensor.
    for (let step = 1; step < ranks; step++) {
      const rank = (me + step) % ranks;
      this.#direct.memory.read(rank, words[wordOf(rank)]! + me * bytes, output + rank * bytes, bytes);
    }
    // ORDER: behind the reads. A rank whose call failed meanwhile has told the next phase already, and its caller may have changed
    // the tensor since; it gave up the window before that.
    this.#direct.throwIfUnusable();
    // ORDER: the post of the next phase tells that this rank has read; only when all have may the call end, because its
    // caller may then change the input. The posts before made the inputs visible.
    this.#phase = 'done';
    this.#onPhase(PART_ALIGNMENT);
  }
}
