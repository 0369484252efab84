// Transfers and channels of an agent as its staging thread has them, by number: each posts jobs on its lane.
import { WeftlineError } from '../../core/errors.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import { PartTable } from '../../transport/part-table.ts';
import type { BackendChannel, BackendRemoteRegion, BackendTransfer, PutPlace } from '../backend.ts';
import type { MemoryTable, StagedMemory } from './devices.ts';
import { capacityFor, Job, type PeerMemory, type Piece, type PieceWay } from './lane.ts';
import { MAX_PIECE_FRAGMENTS, pieceKinds, type RingMemory } from './ring.ts';
import type { SendLane } from './send-lane.ts';
import { STAGED_OPERATIONS } from './staging-board.ts';
import type { StagedPlan } from './staging-thread.ts';

/** A transfer of the backend for each slot: between it and the final places of whatever piece goes through it. */
class SlotTransfers implements PieceWay {
  readonly sendsFromPlace = false;
  readonly #lane: SendLane;
  readonly #tables: readonly PartTable[];
  readonly #transfers: BackendTransfer[] = [];

  static async prepare(lane: SendLane, { plan, remotes }: PreparedTransferParts): Promise<SlotTransfers> {
    const made = new SlotTransfers(lane);
    const regions = { locals: [lane.local], remotes: remotes as readonly BackendRemoteRegion[], isBySelection: true };
    try {
      for (const parts of made.#tables)
        made.#transfers.push(await lane.link.prepare(plan.operation, { ...regions, parts }));
    } catch (error) {
      await made.release().catch(() => {});
      throw error;
    }
    return made;
  }

  private constructor(lane: SendLane) {
    this.#lane = lane;
    this.#tables = Array.from({ length: lane.ring.shape.slots }, () => PartTable.ofCount(MAX_PIECE_FRAGMENTS));
  }

  placeOf(): number {
    return 0;
  }

  post(slot: number, piece: Piece): boolean {
    const transfer = this.#transfers[slot]!;
    const table = this.#tables[slot]!;
    const slotOffset = this.#lane.ring.slotOffset(slot);
    for (let at = 0; at < piece.count; at++) {
      table.localOffset[at] = slotOffset + piece.place[at]!;
      table.remoteOffset[at] = piece.remoteOffset[at]!;
      table.bytes[at] = piece.bytes[at]!;
      table.remote[at] = piece.remoteIndex;
    }
    table.count = piece.count;
    try {
      transfer.post();
      return true;
    } catch (error) {
      if (error instanceof WeftlineError && error.code === 'WL_BUSY') return false;
      throw error;
    }
  }

  isBack(slot: number): boolean {
    const { state, error } = this.#transfers[slot]!;
    if (state === 'failed') throw error ?? new Error('a transfer failed without a reason');
    return state === 'done';
  }

  isDrained(slot: number): boolean {
    return this.#transfers[slot]!.state !== 'pending';
  }

  /** Ends what the backend has under way. */
  cancel(): void {
    for (const transfer of this.#transfers) if (transfer.state === 'pending') transfer.cancel();
  }

  async release(): Promise<void> {
    await Promise.all(this.#transfers.map((transfer) => transfer.release()));
  }
}

/** A channel of the backend to host memory of the peer. */
export class DirectChannel implements PieceWay {
  readonly sendsFromPlace = false;
  readonly #channel: BackendChannel;
  readonly #ring: RingMemory;
  /** What the channel will have delivered when a slot is free, by slot. */
  readonly #marks: Float64Array;
  readonly #place: PutPlace;

  constructor(channel: BackendChannel, { ring, local }: Pick<SendLane, 'ring' | 'local'>) {
    this.#channel = channel;
    this.#ring = ring;
    this.#place = { local, localOffset: 0, remote: { bytes: 0 }, remoteOffset: 0, bytes: 0 };
    this.#marks = new Float64Array(ring.shape.slots);
  }

  placeOf(): number {
    return 0;
  }

  post(slot: number, piece: Piece): boolean {
    const channel = this.#channel;
    const remote = piece.remote as BackendRemoteRegion;
    const remoteOffset = piece.remoteOffset[0]!;
    const place = this.#place;
    place.localOffset = this.#ring.slotOffset(slot);
    place.remote = remote;
    place.remoteOffset = remoteOffset;
    place.bytes = piece.length;
    const isSignal = piece.kind === pieceKinds.signal;
    const isSent = isSignal ? channel.signal(remote, remoteOffset, piece.increment) : channel.put(place);
    if (isSent) this.#marks[slot] = channel.posted;
    return isSent;
  }

  isBack(slot: number): boolean {
    if (this.#channel.delivered >= this.#marks[slot]!) return true;
    if (this.#channel.error !== undefined) throw this.#channel.error;
    return false;
  }

  isDrained(slot: number): boolean {
    const { error, delivered, isQuiet } = this.#channel;
    return error === undefined ? delivered >= this.#marks[slot]! : isQuiet !== false;
  }

  close(): Promise<void> {
    return this.#channel.close();
  }
}

/** What the agent's commands name. */
export interface Prepared {
  readonly lane: SendLane;
  /** `messageBytes`: of the next message of the lane, which goes with it; -1 for none. */
  post(messageBytes: number): void;
  /** Breaks off what is under way, which the agent hears of. */
  fail(error: WeftlineError): void;
  /** The same, because it is closed next. */
  stop(): void;
  /** Something under way moves that memory. */
  uses(memory: StagedMemory): boolean;
  /** Memory of this side that it sends from its place must be the caller's again when it is closed. */
  readonly holdsPlaces: boolean;
  close(): Promise<void>;
}

interface PreparedTransferParts {
  readonly plan: StagedPlan;
  readonly locals: readonly StagedMemory[];
  readonly remotes: readonly PeerMemory[];
  readonly onEnd: (error: WeftlineError | undefined) => void;
}

export class PreparedTransfer implements Prepared {
  readonly holdsPlaces: boolean;
  readonly lane: SendLane;
  readonly #plan: StagedPlan;
  readonly #parts: PartTable;
  readonly #slots: SlotTransfers | undefined;
  readonly #job: Job;
  #capacity: number;
  /** It goes behind the present post. */
  #message: ReturnType<SendLane['messages']['add']> | undefined;

  static async make(lane: SendLane, parts: PreparedTransferParts): Promise<PreparedTransfer> {
    const isDirect = lane.session === undefined;
    return new PreparedTransfer(lane, parts, isDirect ? await SlotTransfers.prepare(lane, parts) : undefined);
  }

  private constructor(
    lane: SendLane,
    { plan, locals, remotes, onEnd }: PreparedTransferParts,
    slots: SlotTransfers | undefined,
  ) {
    this.lane = lane;
    this.#plan = plan;
    this.#parts = PartTable.over(plan.parts);
    this.holdsPlaces = locals.some(({ region }) => region !== undefined);
    this.#slots = slots;
    this.#capacity = this.#capacityNow();
    this.#job = new Job({
      way: slots ?? lane.session!,
      isRead: plan.operation === 'read',
      parts: this.#parts,
      locals,
      remotes,
      onEnd: (error) => {
        traceEnd('staging.transfer', plan.number);
        if (this.#message !== undefined) lane.messages.settle(this.#message, error === undefined);
        onEnd(error);
      },
    });
  }

  post(messageBytes: number): void {
    const { number, isBySelection } = this.#plan;
    traceBegin('staging.transfer', number);
    this.#message = messageBytes < 0 ? undefined : this.lane.messages.add(messageBytes);
    if (isBySelection) this.#capacity = this.#capacityNow();
    this.#job.begin(0, this.#parts.count, this.#capacity);
    this.lane.lane.enqueue(this.#job);
  }

  fail(error: WeftlineError): void {
    if (this.#job.isOver) return;
    this.lane.lane.end(this.#job, error);
    this.#slots?.cancel();
  }

  uses(memory: StagedMemory): boolean {
    return this.#job.uses(memory);
  }

  stop(): void {
    this.fail(new WeftlineError('WL_CLOSED', 'The transfer was closed'));
  }

  async close(): Promise<void> {
    await this.#slots?.release();
  }

  #capacityNow(): number {
    return capacityFor(this.#parts.sums().bytes, this.lane.ring.shape.pieceBytes);
  }
}

interface PreparedChannelParts {
  /** The operations that are under way: a row for each, in turn. */
  readonly rows: SharedArrayBuffer;
  readonly memory: MemoryTable;
  readonly onDelivered: (count: number) => void;
  readonly onFailed: (error: WeftlineError) => void;
}

/** Puts and signals in order. */
export class PreparedChannel implements Prepared {
  readonly holdsPlaces = false;
  readonly lane: SendLane;
  /** Memory of the peer by the numbers in rows. */
  readonly remotes: PeerMemory[] = [];
  readonly #rows: PartTable;
  readonly #memory: MemoryTable;
  readonly #direct: DirectChannel | undefined;
  readonly #jobs: readonly Job[];
  /** By job. */
  readonly #locals: (StagedMemory | undefined)[][];
  readonly #onFailed: (error: WeftlineError) => void;
  #posted = 0;
  #delivered = 0;
  #error: WeftlineError | undefined;

  constructor(lane: SendLane, { rows, memory, onDelivered, onFailed }: PreparedChannelParts) {
    this.lane = lane;
    this.#rows = PartTable.over(rows);
    this.#memory = memory;
    this.#onFailed = onFailed;
    const { session } = lane;
    this.#direct = session === undefined ? new DirectChannel(lane.link.openChannel(), lane) : undefined;
    const options = {
      way: session ?? this.#direct!,
      isRead: false,
      parts: this.#rows,
      remotes: this.remotes,
      onEnd: (error: WeftlineError | undefined) => {
        if (error !== undefined) this.fail(error);
        else onDelivered(this.#countDelivered());
      },
    };
    this.#locals = Array.from({ length: STAGED_OPERATIONS }, () => [undefined]);
    this.#jobs = this.#locals.map((locals) => new Job({ ...options, locals }));
  }

  /** The next row. */
  post(): void {
    if (this.#error !== undefined) return;
    const { lane } = this;
    const rows = this.#rows;
    const row = this.#posted++ % STAGED_OPERATIONS;
    const job = this.#jobs[row]!;
    // The row names memory by its number, the job's list has it alone.
    this.#locals[row]![0] = rows.bytes[row] === 0 ? undefined : this.#memory.get(rows.local[row]!);
    rows.local[row] = 0;
    job.begin(row, 1, lane.ring.shape.pieceBytes);
    lane.lane.enqueue(job);
  }

  uses(memory: StagedMemory): boolean {
    return this.#jobs.some((job) => job.uses(memory));
  }

  fail(error: WeftlineError): void {
    if (this.#error !== undefined) return;
    this.#end(error);
    this.#onFailed(error);
  }

  stop(): void {
    this.#end(new WeftlineError('WL_CLOSED', 'The channel was closed'));
  }

  async close(): Promise<void> {
    await this.#direct?.close();
  }

  /** In order, though pieces of different lanes come back in any. */
  #countDelivered(): number {
    while (this.#delivered < this.#posted && this.#jobs[this.#delivered % STAGED_OPERATIONS]!.isOver) this.#delivered++;
    return this.#delivered;
  }

  #end(error: WeftlineError): void {
    this.#error ??= error;
    for (const job of this.#jobs) if (!job.isOver) this.lane.lane.end(job, this.#error);
  }
}
