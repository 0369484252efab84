// A transfer between staged memory of this side and host memory of the peer, which the backend reaches without the peer's
// help: a transfer of the backend per piece, between a slot that was chosen when it was prepared and the final places.
import { PartTable } from '../../transport/part-table.ts';
import type { BackendLink, BackendRegion, BackendRemoteRegion, BackendTransfer } from '../backend.ts';
import type { PiecePlan } from './piece-plan.ts';
import { PlannedJob, type PlannedJobParts } from './planned-job.ts';
import type { RingMemory } from './ring-memory.ts';
import { tryPost } from './try-post.ts';

interface DirectTransferOptions {
  readonly link: BackendLink;
  /** The ring. */
  readonly local: BackendRegion;
  readonly remotes: readonly BackendRemoteRegion[];
  /** The slot of the first piece. */
  readonly firstSlot: number;
}

export class DirectTransfer extends PlannedJob {
  readonly #slots: number;
  readonly #firstSlot: number;
  readonly #transfers: readonly BackendTransfer[];

  static async prepare(parts: PlannedJobParts, options: DirectTransferOptions): Promise<DirectTransfer> {
    const { plan, ring, operation } = parts;
    const { link, local, remotes, firstSlot } = options;
    const transfers: BackendTransfer[] = [];
    try {
      for (let piece = 0; piece < plan.count; piece++) {
        const slot = (firstSlot + piece) % ring.shape.slots;
        const table = tableOf(plan, piece, ring.slotOffset(slot));
        transfers.push(await link.prepare(operation, { locals: [local], remotes, parts: table }));
      }
    } catch (error) {
      await Promise.allSettled(transfers.map((transfer) => transfer.release()));
      throw error;
    }
    return new DirectTransfer(parts, ring, firstSlot, transfers);
  }

  private constructor(
    parts: PlannedJobParts,
    ring: RingMemory,
    firstSlot: number,
    transfers: readonly BackendTransfer[],
  ) {
    super(parts);
    this.#slots = ring.shape.slots;
    this.#firstSlot = firstSlot;
    this.#transfers = transfers;
  }

  fits(slot: number): boolean {
    return slot === (this.#firstSlot + this.opened) % this.#slots;
  }

  open(piece: number, slot: number): number {
    return this.fillSlot(piece, slot, 0);
  }

  send(piece: number): boolean {
    return tryPost(this.#transfer(piece));
  }

  isBack(piece: number): boolean {
    const transfer = this.#transfer(piece);
    if (transfer.state === 'failed') throw transfer.error ?? new Error('a transfer failed without a reason');
    return transfer.state === 'done';
  }

  isDrained(piece: number): boolean {
    return this.#transfer(piece).state !== 'pending';
  }

  land(piece: number, slot: number): number {
    return this.emptySlot(piece, slot, 0);
  }

  /** Ends what the backend has under way for it. */
  cancel(): void {
    for (const transfer of this.#transfers) if (transfer.state === 'pending') transfer.cancel();
  }

  async release(): Promise<void> {
    await Promise.all(this.#transfers.map((transfer) => transfer.release()));
  }

  #transfer(piece: number): BackendTransfer {
    return this.#transfers[piece] as BackendTransfer;
  }
}

/** Of one piece: from the begin of the ring to the final places. */
function tableOf(plan: PiecePlan, piece: number, slotOffset: number): PartTable {
  const first = plan.first[piece]!;
  const count = plan.first[piece + 1]! - first;
  const table = PartTable.ofCount(count);
  for (let at = 0; at < count; at++) {
    table.localOffset[at] = slotOffset + plan.slotOffset[first + at]!;
    table.remoteOffset[at] = plan.remoteOffset[first + at]!;
    table.bytes[at] = plan.bytes[first + at]!;
    table.remote[at] = plan.remote[first + at]!;
  }
  return table;
}
