// A channel of the agent as its staging thread carries it out: operations in order on a lane. Hot path: no allocation.
import { WeftlineError } from '../../core/errors.ts';
import type { BackendChannel, BackendRegion, BackendRemoteRegion, PutPlace } from '../backend.ts';
import { STAGED_OPERATIONS } from './staging-board.ts';
import { type CopyRun, NO_TICKET } from './device-copies.ts';
import { Job } from './lane.ts';
import type { StagedMemory } from './memory-table.ts';
import { tryPut, trySignal } from './piece-channels.ts';
import type { RemoteStagedMemory } from './planned-transfers.ts';
import { dataOffsetOf, type RingMemory } from './ring-memory.ts';
import type { PieceWords, SendLane, SendSession } from './send-lane.ts';
import { pieceKinds } from './wire-layout.ts';

interface ChannelJobParts {
  readonly ring: RingMemory;
  /** The thread's run of copies. */
  readonly run: CopyRun;
  readonly onEnd: (error: WeftlineError | undefined) => void;
}

/** One operation of a channel on a lane: a put, in as many pieces as it takes, or a signal. Hot path: no allocation. */
abstract class ChannelJob<Remote> extends Job {
  /** Memory that a put sends; undefined: this is a signal. */
  local: StagedMemory | undefined;
  localOffset = 0;
  remote: Remote | undefined;
  remoteOffset = 0;
  /** Bytes of the put, at least one: puts of none are not posted. */
  bytes = 0;
  add = 0;
  /** -1 if it is not known. */
  sum = -1;
  protected readonly ring: RingMemory;
  readonly #run: CopyRun;
  readonly #onEnd: (error: WeftlineError | undefined) => void;

  constructor({ ring, run, onEnd }: ChannelJobParts) {
    super();
    this.ring = ring;
    this.#run = run;
    this.#onEnd = onEnd;
  }

  override begin(): void {
    this.pieces = this.local === undefined ? 1 : Math.ceil(this.bytes / this.ring.shape.pieceBytes);
    super.begin();
  }

  isFilled(_piece: number, ticket: number): boolean {
    return this.local === undefined || this.local.copies.isDone('out', ticket);
  }

  land(): number {
    return 0;
  }

  isLanded(): boolean {
    return true;
  }

  protected ended(error: WeftlineError | undefined): void {
    this.#onEnd(error);
  }

  protected offsetOf(piece: number): number {
    return piece * this.ring.shape.pieceBytes;
  }

  protected bytesOf(piece: number): number {
    return Math.min(this.ring.shape.pieceBytes, this.bytes - this.offsetOf(piece));
  }

  protected fillSlot(piece: number, slot: number, dataOffset: number): number {
    const { local, ring } = this;
    if (local === undefined) return 0;
    const run = this.#run;
    run.clear();
    const from = local.address + this.localOffset + this.offsetOf(piece);
    run.add(ring.address + ring.slotOffset(slot) + dataOffset, from, this.bytesOf(piece));
    return local.copies.copy('out', run);
  }
}

/** An operation to memory that the peer stages. */
class SessionChannelJob extends ChannelJob<RemoteStagedMemory> {
  readonly #session: SendSession;
  readonly #words: PieceWords = {
    kind: pieceKinds.signal,
    region: 0,
    key: 0,
    fragments: 0,
    dataOffset: 0,
    offset: 0,
    add: 0,
    sum: -1,
  };

  constructor(parts: ChannelJobParts, session: SendSession) {
    super(parts);
    this.#session = session;
  }

  open(piece: number, slot: number): number {
    const isPut = this.local !== undefined;
    const fragments = isPut ? 1 : 0;
    const dataOffset = dataOffsetOf(fragments);
    const ticket = this.fillSlot(piece, slot, dataOffset);
    if (ticket === NO_TICKET) return ticket;
    const { number, key } = this.remote as RemoteStagedMemory;
    const words = this.#words;
    words.kind = isPut ? pieceKinds.write : pieceKinds.signal;
    words.region = number;
    words.key = key;
    words.fragments = fragments;
    words.dataOffset = dataOffset;
    words.offset = isPut ? 0 : this.remoteOffset;
    words.add = isPut ? 0 : this.add;
    words.sum = isPut ? -1 : this.sum;
    const session = this.#session;
    session.fill(slot, words);
    if (isPut) {
      const offset = this.remoteOffset + this.offsetOf(piece);
      session.describe(session.placeOf(slot, 0), offset, this.bytesOf(piece), 0);
    }
    return ticket;
  }

  send(piece: number, slot: number): boolean {
    const isPut = this.local !== undefined;
    return this.#session.send(slot, dataOffsetOf(isPut ? 1 : 0) + (isPut ? this.bytesOf(piece) : 0));
  }

  isBack(_piece: number, slot: number): boolean {
    this.#session.check(slot);
    return true;
  }

  isDrained(): boolean {
    return true;
  }
}

/** What the jobs of a channel to host memory of the peer share. */
interface DirectChannel {
  readonly channel: BackendChannel;
  /** The ring. */
  readonly local: BackendRegion;
  /** What the channel will have delivered when a slot is free, by slot. */
  readonly marks: Float64Array;
}

/** An operation to host memory of the peer. */
export class DirectChannelJob extends ChannelJob<BackendRemoteRegion> {
  readonly #direct: DirectChannel;
  #place: PutPlace | undefined;

  constructor(parts: ChannelJobParts, direct: DirectChannel) {
    super(parts);
    this.#direct = direct;
  }

  open(piece: number, slot: number): number {
    return this.fillSlot(piece, slot, 0);
  }

  send(piece: number, slot: number): boolean {
    const { channel, marks } = this.#direct;
    const isSent = this.local === undefined ? this.#signal() : this.#put(piece, slot);
    if (isSent) marks[slot] = channel.posted;
    return isSent;
  }

  isBack(_piece: number, slot: number): boolean {
    const { channel, marks } = this.#direct;
    if (channel.delivered >= marks[slot]!) return true;
    if (channel.error !== undefined) throw channel.error;
    return false;
  }

  isDrained(_piece: number, slot: number): boolean {
    const { channel, marks } = this.#direct;
    return channel.error === undefined ? channel.delivered >= marks[slot]! : channel.isQuiet !== false;
  }

  #signal(): boolean {
    const { remote, remoteOffset, add } = this;
    return trySignal(this.#direct.channel, remote as BackendRemoteRegion, remoteOffset, add);
  }

  #put(piece: number, slot: number): boolean {
    const remote = this.remote as BackendRemoteRegion;
    const place = (this.#place ??= {
      local: this.#direct.local,
      localOffset: 0,
      remote,
      remoteOffset: 0,
      bytes: 0,
    });
    place.localOffset = this.ring.slotOffset(slot);
    place.remote = remote;
    place.remoteOffset = this.remoteOffset + this.offsetOf(piece);
    place.bytes = this.bytesOf(piece);
    return tryPut(this.#direct.channel, place);
  }
}

interface ThreadChannelOptions {
  /** The thread's run of copies. */
  readonly run: CopyRun;
  /** Hears how many operations are delivered, counted from the first. */
  readonly onDelivered: (count: number) => void;
  readonly onFailed: (error: WeftlineError) => void;
}

type AnyRemote = RemoteStagedMemory | BackendRemoteRegion;

export class ThreadChannel {
  readonly lane: SendLane;
  /** Memory of the peer by the numbers of commands. */
  readonly remotes: AnyRemote[] = [];
  readonly #jobs: readonly ChannelJob<AnyRemote>[];
  readonly #direct: DirectChannel | undefined;
  readonly #options: ThreadChannelOptions;
  #posted = 0;
  #delivered = 0;
  #error: WeftlineError | undefined;

  constructor(lane: SendLane, options: ThreadChannelOptions) {
    this.lane = lane;
    this.#options = options;
    const { ring, session, local } = lane;
    const parts: ChannelJobParts = {
      ring,
      run: options.run,
      onEnd: (error) => this.#ended(error),
    };
    if (session === undefined) {
      const direct = { channel: lane.link.openChannel(), local, marks: new Float64Array(ring.shape.slots) };
      this.#direct = direct;
      this.#jobs = Array.from(
        { length: STAGED_OPERATIONS },
        () => new DirectChannelJob(parts, direct) as ChannelJob<AnyRemote>,
      );
    } else {
      this.#jobs = Array.from(
        { length: STAGED_OPERATIONS },
        () => new SessionChannelJob(parts, session) as ChannelJob<AnyRemote>,
      );
    }
  }

  put(
    local: StagedMemory,
    remote: AnyRemote | undefined,
    place: { readonly localOffset: number; readonly remoteOffset: number; readonly bytes: number },
  ): void {
    const job = this.#next(remote);
    if (job === undefined) return;
    job.local = local;
    job.localOffset = place.localOffset;
    job.remoteOffset = place.remoteOffset;
    job.bytes = place.bytes;
    this.#post(job);
  }

  /** `sum`: -1 if it is not known. */
  signal(remote: AnyRemote | undefined, offset: number, add: number, sum: number): void {
    const job = this.#next(remote);
    if (job === undefined) return;
    job.local = undefined;
    job.remoteOffset = offset;
    job.add = add;
    job.sum = sum;
    this.#post(job);
  }

  /** Something under way copies from that memory. */
  uses(memory: StagedMemory): boolean {
    return this.#jobs.some((job) => !job.isOver && job.local === memory);
  }

  fail(error: WeftlineError): void {
    if (this.#error !== undefined) return;
    this.#error = error;
    for (const job of this.#jobs) if (!job.isOver) this.lane.lane.end(job, error);
    this.#options.onFailed(error);
  }

  async close(): Promise<void> {
    this.#error ??= new WeftlineError('WL_CLOSED', 'The channel was closed');
    for (const job of this.#jobs) if (!job.isOver) this.lane.lane.end(job, this.#error);
    await this.#direct?.channel.close();
  }

  #next(remote: AnyRemote | undefined): ChannelJob<AnyRemote> | undefined {
    if (this.#error !== undefined) return undefined;
    const job = this.#jobs[this.#posted % STAGED_OPERATIONS] as ChannelJob<AnyRemote>;
    job.remote = remote;
    return job;
  }

  #post(job: ChannelJob<AnyRemote>): void {
    this.#posted++;
    job.begin();
    this.lane.lane.enqueue(job);
  }

  #ended(error: WeftlineError | undefined): void {
    if (error === undefined) {
      this.#delivered++;
      this.#options.onDelivered(this.#delivered);
    } else this.fail(error);
  }
}
