// A transfer to or from memory that the peer stages: its pieces say where in that memory their bytes belong. Hot path.
import { WeftlineError } from '../../core/errors.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import { PartTable } from '../../transport/part-table.ts';
import type {
  BackendLink,
  BackendRegion,
  BackendRemoteRegion,
  BackendTransfer,
  TransferOperation,
} from '../backend.ts';
import type { CopyRun, DeviceCopies } from './device-copies.ts';
import { Job } from './lane.ts';
import type { StagedMemory } from './memory-table.ts';
import { tryPost } from './piece-channels.ts';
import { dataOffsetOf, type RingMemory } from './ring-memory.ts';
import type { PieceWords, SendLane, SendSession } from './send-lane.ts';
import type { RemoteMemoryName } from './staging-messages.ts';
import { MAX_PIECE_FRAGMENTS, pieceFragment, pieceHead, pieceKinds } from './wire-layout.ts';

/** Fragments begin at multiples of it, so that copies are of whole words. */
const FRAGMENT_ALIGNMENT = 16;
/** A small transfer is cut into so many pieces, so that copies and the network overlap, */
const FEW_PIECES = 4;
/** of sizes between these; */
const MIN_PIECE_BYTES = 128 << 10;
const MIDDLE_PIECE_BYTES = 512 << 10;
/** a large one into so many or more: each piece costs the network two signals, whatever its size. */
const MANY_PIECES = 16;
const PAGE_BYTES = 4096;

interface PiecePlanOptions {
  /** Most bytes of a piece. */
  readonly pieceBytes: number;
  /** Devices by local region: fragments of one piece belong to one device. */
  readonly deviceOf: readonly unknown[];
}

/** Columns of fragments in the order of the transfer's parts; piece i has those from `first[i]` to before `first[i + 1]`. */
export class PiecePlan {
  readonly count: number;
  readonly first: Uint32Array;
  /** Bytes of each piece in its slot. */
  readonly pieceBytes: Uint32Array;
  readonly local: Uint32Array;
  readonly localOffset: Float64Array;
  readonly remote: Uint32Array;
  readonly remoteOffset: Float64Array;
  readonly bytes: Uint32Array;
  readonly slotOffset: Uint32Array;

  constructor(parts: PartTable, options: PiecePlanOptions) {
    const { deviceOf } = options;
    const capacity = capacityFor(parts.sums().bytes, options.pieceBytes);
    let fragments = 0;
    for (let part = 0; part < parts.count; part++) {
      fragments += parts.ranges[part]! * Math.ceil(parts.bytes[part]! / capacity);
    }
    this.local = new Uint32Array(fragments);
    this.localOffset = new Float64Array(fragments);
    this.remote = new Uint32Array(fragments);
    this.remoteOffset = new Float64Array(fragments);
    this.bytes = new Uint32Array(fragments);
    this.slotOffset = new Uint32Array(fragments);
    const first = new Uint32Array(fragments + 1);
    const pieceBytes = new Uint32Array(fragments);
    let pieces = 0;
    let used = 0;
    let next = 0;
    let [device, remote]: [unknown, number] = [undefined, -1];
    for (let part = 0; part < parts.count; part++) {
      const local = parts.local[part]!;
      const whole = parts.bytes[part]!;
      for (let [range, done] = [0, 0]; range < parts.ranges[part]!;) {
        const bytes = Math.min(capacity, whole - done);
        const isOther = deviceOf[local] !== device || parts.remote[part]! !== remote;
        const start = pieces === 0 ? 0 : first[pieces - 1]!;
        if (pieces === 0 || isOther || used + bytes > capacity || next - start === MAX_PIECE_FRAGMENTS) {
          first[pieces++] = next;
          used = 0;
          device = deviceOf[local];
          remote = parts.remote[part]!;
        }
        this.local[next] = local;
        this.localOffset[next] = parts.localOffset[part]! + range * parts.localStride[part]! + done;
        this.remote[next] = remote;
        this.remoteOffset[next] = parts.remoteOffset[part]! + range * parts.remoteStride[part]! + done;
        this.bytes[next] = bytes;
        this.slotOffset[next] = used;
        pieceBytes[pieces - 1] = used + bytes;
        used += Math.ceil(bytes / FRAGMENT_ALIGNMENT) * FRAGMENT_ALIGNMENT;
        next++;
        done += bytes;
        if (done === whole) [range, done] = [range + 1, 0];
      }
    }
    first[pieces] = next;
    this.count = pieces;
    this.first = first.slice(0, pieces + 1);
    this.pieceBytes = pieceBytes.slice(0, pieces);
  }
}

/** Bytes of the pieces of a transfer of so many: at most `pieceBytes`. */
export function capacityFor(total: number, pieceBytes: number): number {
  const small = Math.min(total / FEW_PIECES, MIDDLE_PIECE_BYTES);
  const fair = Math.ceil(Math.max(small, total / MANY_PIECES) / PAGE_BYTES) * PAGE_BYTES;
  return Math.min(pieceBytes, Math.max(fair, MIN_PIECE_BYTES));
}

interface PlannedJobParts {
  /** The transfer's number on the board. */
  readonly transfer: number;
  readonly operation: TransferOperation;
  readonly plan: PiecePlan;
  readonly locals: readonly StagedMemory[];
  readonly ring: RingMemory;
  /** The thread's run of copies. */
  readonly run: CopyRun;
  readonly onEnd: (error: WeftlineError | undefined) => void;
}

/** A transfer that the agent has prepared. */
export interface Prepared {
  readonly lane: SendLane;
  job: DirectTransfer | SessionTransfer;
  /** Makes the job of what is selected now, while pieces of earlier ones may still be under way; undefined if all of it is moved each time. */
  readonly renew: (() => Prepared['job']) | undefined;
}

/** A transfer on a lane: copies its pieces between memory of this side and the ring. Hot path: no allocation. */
abstract class PlannedJob extends Job {
  protected readonly plan: PiecePlan;
  protected readonly isRead: boolean;
  readonly locals: readonly StagedMemory[];
  readonly #transfer: number;
  readonly #ring: RingMemory;
  readonly #run: CopyRun;
  readonly #onEnd: (error: WeftlineError | undefined) => void;

  constructor({ transfer, operation, plan, locals, ring, run, onEnd }: PlannedJobParts) {
    super();
    this.#transfer = transfer;
    this.pieces = plan.count;
    this.plan = plan;
    this.isRead = operation === 'read';
    this.locals = locals;
    this.#ring = ring;
    this.#run = run;
    this.#onEnd = onEnd;
  }

  override begin(): void {
    traceBegin('staging.transfer', this.#transfer);
    super.begin();
  }

  isFilled(piece: number, ticket: number): boolean {
    return this.isRead || this.#copies(piece).isDone('out', ticket);
  }

  isLanded(piece: number, ticket: number): boolean {
    return !this.isRead || this.#copies(piece).isDone('in', ticket);
  }

  /** What devices of this side still do for it is done. */
  *devices(): Generator<DeviceCopies> {
    for (const { copies } of this.locals) yield copies;
  }

  protected ended(error: WeftlineError | undefined): void {
    traceEnd('staging.transfer', this.#transfer);
    this.#onEnd(error);
  }

  /** `dataOffset`: where in the slot the bytes begin. */
  protected fillSlot(piece: number, slot: number, dataOffset: number): number {
    if (this.isRead) return 0;
    const base = this.#ring.address + this.#ring.slotOffset(slot) + dataOffset;
    const { plan } = this;
    const run = this.#run;
    run.clear();
    for (let at = plan.first[piece]!; at < plan.first[piece + 1]!; at++) {
      run.add(base + plan.slotOffset[at]!, this.#address(at), plan.bytes[at]!);
    }
    return this.#copies(piece).copy('out', run);
  }

  protected emptySlot(piece: number, slot: number, dataOffset: number): number {
    if (!this.isRead) return 0;
    const base = this.#ring.address + this.#ring.slotOffset(slot) + dataOffset;
    const { plan } = this;
    const run = this.#run;
    run.clear();
    for (let at = plan.first[piece]!; at < plan.first[piece + 1]!; at++) {
      run.add(this.#address(at), base + plan.slotOffset[at]!, plan.bytes[at]!);
    }
    return this.#copies(piece).copy('in', run);
  }

  #address(fragment: number): number {
    return (this.locals[this.plan.local[fragment]!] as StagedMemory).address + this.plan.localOffset[fragment]!;
  }

  /** All fragments of a piece belong to one device. */
  #copies(piece: number): DeviceCopies {
    return (this.locals[this.plan.local[this.plan.first[piece]!]!] as StagedMemory).copies;
  }
}

interface SlotTransfersOptions {
  readonly link: BackendLink;
  readonly operation: TransferOperation;
  readonly ring: RingMemory;
  /** The ring. */
  readonly local: BackendRegion;
  readonly remotes: readonly BackendRemoteRegion[];
}

/** A transfer of the backend for each slot: between it and the final places of whatever piece goes through it. */
export class SlotTransfers {
  readonly #ring: RingMemory;
  readonly #tables: readonly PartTable[];
  readonly #transfers: BackendTransfer[] = [];

  static async prepare({ link, operation, ring, local, remotes }: SlotTransfersOptions): Promise<SlotTransfers> {
    const made = new SlotTransfers(ring);
    try {
      for (const parts of made.#tables) {
        const plan = { locals: [local], remotes, parts, isBySelection: true };
        made.#transfers.push(await link.prepare(operation, plan));
      }
    } catch (error) {
      await Promise.allSettled(made.#transfers.map((transfer) => transfer.release()));
      throw error;
    }
    return made;
  }

  private constructor(ring: RingMemory) {
    this.#ring = ring;
    this.#tables = Array.from({ length: ring.shape.slots }, () => PartTable.ofCount(MAX_PIECE_FRAGMENTS));
  }

  of(slot: number): BackendTransfer {
    return this.#transfers[slot] as BackendTransfer;
  }

  /** Hot path. False if there is no room now. */
  post(plan: PiecePlan, piece: number, slot: number): boolean {
    const transfer = this.of(slot);
    if (transfer.holdsParts === true) return false;
    const table = this.#tables[slot] as PartTable;
    const first = plan.first[piece]!;
    const count = plan.first[piece + 1]! - first;
    const slotOffset = this.#ring.slotOffset(slot);
    for (let at = 0; at < count; at++) {
      table.localOffset[at] = slotOffset + plan.slotOffset[first + at]!;
      table.remoteOffset[at] = plan.remoteOffset[first + at]!;
      table.bytes[at] = plan.bytes[first + at]!;
      table.remote[at] = plan.remote[first + at]!;
    }
    table.count = count;
    return tryPost(transfer);
  }

  /** Ends what the backend has under way. */
  cancel(): void {
    for (const transfer of this.#transfers) if (transfer.state === 'pending') transfer.cancel();
  }

  async release(): Promise<void> {
    await Promise.all(this.#transfers.map((transfer) => transfer.release()));
  }
}

/** A transfer between staged memory of this side and host memory of the peer, which the backend reaches without its help. */
export class DirectTransfer extends PlannedJob {
  readonly transfers: SlotTransfers;

  constructor(parts: PlannedJobParts, transfers: SlotTransfers) {
    super(parts);
    this.transfers = transfers;
  }

  open(piece: number, slot: number): number {
    return this.fillSlot(piece, slot, 0);
  }

  send(piece: number, slot: number): boolean {
    return this.transfers.post(this.plan, piece, slot);
  }

  isBack(_piece: number, slot: number): boolean {
    const { state, error } = this.transfers.of(slot);
    if (state === 'failed') throw error ?? new Error('a transfer failed without a reason');
    return state === 'done';
  }

  isDrained(_piece: number, slot: number): boolean {
    return this.transfers.of(slot).state !== 'pending';
  }

  land(piece: number, slot: number): number {
    return this.emptySlot(piece, slot, 0);
  }
}

/** A second put costs more than to copy fewer bytes. */
const MIN_FROM_PLACE = 32 << 10;

export interface RemoteStagedMemory {
  readonly number: number;
  readonly key: number;
}

/** The name of memory that the peer stages. */
export function stagedName(remote: RemoteMemoryName): RemoteStagedMemory {
  if ('number' in remote) return remote;
  throw new WeftlineError('WL_INTERNAL', 'Host memory of a peer was named on a lane to its staging thread');
}

/** A transfer between memory of this side and memory that the peer stages. */
export class SessionTransfer extends PlannedJob {
  readonly #session: SendSession;
  readonly #remotes: readonly RemoteStagedMemory[];
  readonly #words: PieceWords;

  constructor(parts: PlannedJobParts, session: SendSession, remotes: readonly RemoteStagedMemory[]) {
    super(parts);
    this.#session = session;
    this.#remotes = remotes;
    const kind = parts.operation === 'read' ? pieceKinds.read : pieceKinds.write;
    this.#words = { kind, region: 0, key: 0, fragments: 0, dataOffset: 0, offset: 0, add: 0, sum: -1 };
  }

  open(piece: number, slot: number): number {
    const { plan } = this;
    const first = plan.first[piece]!;
    const count = plan.first[piece + 1]! - first;
    const dataOffset = dataOffsetOf(count);
    const ticket = this.#isSentFromPlace(piece) ? 0 : this.fillSlot(piece, slot, dataOffset);
    if (ticket < 0) return ticket;
    const { number, key } = this.#remotes[plan.remote[first]!] as RemoteStagedMemory;
    const words = this.#words;
    words.region = number;
    words.key = key;
    words.fragments = count;
    words.dataOffset = dataOffset;
    const session = this.#session;
    session.fill(slot, words);
    for (let at = 0; at < count; at++) {
      const fragment = first + at;
      const { remoteOffset, bytes, slotOffset } = plan;
      session.describe(session.placeOf(slot, at), remoteOffset[fragment]!, bytes[fragment]!, slotOffset[fragment]!);
    }
    return ticket;
  }

  send(piece: number, slot: number): boolean {
    const { plan } = this;
    const first = plan.first[piece]!;
    if (this.#isSentFromPlace(piece)) {
      const { region } = this.locals[plan.local[first]!] as StagedMemory;
      return this.#session.sendFrom(slot, region as BackendRegion, plan.localOffset[first]!, plan.bytes[first]!);
    }
    const count = plan.first[piece + 1]! - first;
    const headBytes = pieceHead.size + count * pieceFragment.size;
    return this.#session.send(slot, this.isRead ? headBytes : dataOffsetOf(count) + plan.pieceBytes[piece]!);
  }

  isBack(_piece: number, slot: number): boolean {
    this.#session.check(slot);
    return true;
  }

  isDrained(): boolean {
    return true;
  }

  land(piece: number, slot: number): number {
    const count = this.plan.first[piece + 1]! - this.plan.first[piece]!;
    return this.emptySlot(piece, slot, dataOffsetOf(count));
  }

  /** A write of one large range of memory that the backend reaches. */
  #isSentFromPlace(piece: number): boolean {
    if (this.isRead) return false;
    const { plan } = this;
    const first = plan.first[piece]!;
    const isOne = plan.first[piece + 1]! - first === 1 && plan.bytes[first]! >= MIN_FROM_PLACE;
    return isOne && this.locals[plan.local[first]!]?.region !== undefined;
  }
}
