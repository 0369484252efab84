// A lane to one peer with all that it holds: links, ring, session, messages. Made when it is first needed.
import { putWide } from '../../abi/layout.ts';
import { Deadline } from '../../core/deadline.ts';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import type { Backend, BackendLink, BackendRegion, BackendRemoteRegion, PutPlace } from '../backend.ts';
import type { Greeter } from './greeter.ts';
import type { InnerLinks, LinkUse } from './inner-links.ts';
import { Lane, type LaneCarrier } from './lane.ts';
import { channelsTo, PieceChannels } from './piece-channels.ts';
import { channelOf, dataOffsetOf, endRing, type MakeStorage, RingMemory, type RingShape } from './ring-memory.ts';
import { MessageQueue, StagedMessages } from './staged-messages.ts';
import type { LaneOptions } from './staging-messages.ts';
import { pieceFragment, pieceHead, pieceKinds, pieceStatuses } from './wire-layout.ts';

/** What a piece says of itself. Owned by its job and written again. */
export interface PieceWords {
  kind: number;
  region: number;
  key: number;
  fragments: number;
  dataOffset: number;
  offset: number;
  add: number;
  /** -1 if it is not known. */
  sum: number;
}

interface SendSessionParts {
  readonly peer: string;
  readonly ring: RingMemory;
  readonly local: BackendRegion;
  /** The peer's ring, of the same shape. */
  readonly remote: BackendRemoteRegion;
  readonly channels: PieceChannels;
}

const { offset } = pieceHead;

/** The sender's side of two rings: puts pieces into the peer's, and reads from its own what became of them. Hot path. */
export class SendSession implements LaneCarrier {
  readonly peer: string;
  readonly ring: RingMemory;
  readonly #channels: PieceChannels;
  readonly #place: PutPlace;
  #direct: PutPlace | undefined;
  /** Columns by channel: puts of its piece that were made before one, or the signal, found no room; and whether it is given up. */
  readonly #puts: Uint8Array;
  readonly #skips: Uint8Array;
  /** Columns by channel: pieces that were filled, which wraps, and those that have come back. */
  readonly #filled: Uint32Array;
  readonly #returned: Float64Array;

  constructor({ peer, ring, local, remote, channels }: SendSessionParts) {
    this.peer = peer;
    this.ring = ring;
    this.#channels = channels;
    this.#place = { local, localOffset: 0, remote, remoteOffset: 0, bytes: 0 };
    this.#puts = new Uint8Array(channels.count);
    this.#skips = new Uint8Array(channels.count);
    this.#filled = new Uint32Array(channels.count);
    this.#returned = new Float64Array(channels.count);
  }

  /** Why nothing goes any more. */
  get error(): WeftlineError | undefined {
    return this.#channels.error;
  }

  get count(): number {
    return this.#channels.count;
  }

  returned(channel: number): number {
    while (this.#channels.take(channel)) this.#returned[channel]!++;
    return this.#returned[channel]!;
  }

  /** Writes the head of a slot, which is nobody else's now: of the next piece of its channel. */
  fill(slot: number, piece: PieceWords): void {
    const { ring } = this;
    const { words } = ring;
    const at = ring.slotOffset(slot);
    words[(at + offset.kind) / 4] = piece.kind;
    if (piece.kind === pieceKinds.signal) words.set(this.#filled, (at + pieceHead.size) / 4);
    this.#filled[channelOf(slot, this.count)]!++;
    words[(at + offset.region) / 4] = piece.region;
    putWide(words, (at + offset.key) / 4, piece.key);
    words[(at + offset.fragments) / 4] = piece.fragments;
    words[(at + offset.dataOffset) / 4] = piece.dataOffset;
    putWide(words, (at + offset.offset) / 4, piece.offset);
    putWide(words, (at + offset.add) / 4, piece.add);
    putWide(words, (at + offset.sum) / 4, Math.max(piece.sum, 0));
    words[(at + offset.hasSum) / 4] = piece.sum < 0 ? 0 : 1;
    words[ring.statusOffset(slot) / 4] = pieceStatuses.good;
  }

  /** The place in the ring that describes the slot's fragment of that index. */
  placeOf(slot: number, index: number): number {
    return this.ring.slotOffset(slot) + pieceHead.size + index * pieceFragment.size;
  }

  /** One of its fragments, at its place. */
  describe(at: number, remoteOffset: number, bytes: number, slotOffset: number): void {
    const { words } = this.ring;
    putWide(words, (at + pieceFragment.offset.remoteOffset) / 4, remoteOffset);
    words[(at + pieceFragment.offset.bytes) / 4] = bytes;
    words[(at + pieceFragment.offset.slotOffset) / 4] = slotOffset;
  }

  /** Sends the first bytes of a slot. False, to be called again, if there is no room now. */
  send(slot: number, bytes: number): boolean {
    const channel = this.#beginSend(slot);
    return this.#putSlot(channel, slot, bytes) && this.#tell(channel);
  }

  /** The same of a piece whose one fragment lies in memory that the backend sends from. */
  sendFrom(slot: number, region: BackendRegion, localOffset: number, bytes: number): boolean {
    const channel = this.#beginSend(slot);
    const dataOffset = dataOffsetOf(1);
    if (!this.#putSlot(channel, slot, dataOffset)) return false;
    if (this.#puts[channel] === 1) {
      const place = (this.#direct ??= { ...this.#place });
      place.local = region;
      place.localOffset = localOffset;
      place.remoteOffset = this.ring.slotOffset(slot) + dataOffset;
      place.bytes = bytes;
      if (!this.#channels.put(channel, place)) return false;
      this.#puts[channel] = 2;
    }
    return this.#tell(channel);
  }

  skip(slot: number): boolean {
    const channel = channelOf(slot, this.count);
    if (this.#skips[channel] === 0) {
      // What was put of a piece that was given up is overwritten before the signal tells of it.
      this.#puts[channel] = 0;
      this.#skips[channel] = 1;
      const { ring } = this;
      ring.words[(ring.slotOffset(slot) + offset.kind) / 4] = pieceKinds.nothing;
    }
    if (!this.#putSlot(channel, slot, pieceHead.size) || !this.#tell(channel)) return false;
    this.#skips[channel] = 0;
    return true;
  }

  /** Looks at a piece that has come back. Fails if it was refused. */
  check(slot: number): void {
    const status = this.ring.words[this.ring.statusOffset(slot) / 4]!;
    if (status === pieceStatuses.good) return;
    const { peer } = this;
    const details = { peer };
    if (status === pieceStatuses.unauthorized) {
      throw new WeftlineError('WL_UNAUTHORIZED', `${peer} has taken its memory back, or never offered it`, { details });
    }
    throw new WeftlineError('WL_PEER_FAILED', `${peer} could not copy between its device and pinned memory`, {
      details,
    });
  }

  /** Tells whether nothing that is on its way now is read from memory of this side any more. */
  fence(): () => boolean {
    return this.#channels.fence();
  }

  close(): Promise<void> {
    return this.#channels.close();
  }

  /** Returns the channel of the slot. */
  #beginSend(slot: number): number {
    const channel = channelOf(slot, this.count);
    if (this.#skips[channel] === 1) this.#puts[channel] = 0;
    this.#skips[channel] = 0;
    return channel;
  }

  /** The first bytes of a slot. */
  #putSlot(channel: number, slot: number, bytes: number): boolean {
    if (this.#puts[channel]! > 0) return true;
    const place = this.#place;
    place.localOffset = place.remoteOffset = this.ring.slotOffset(slot);
    place.bytes = bytes;
    if (!this.#channels.put(channel, place)) return false;
    this.#puts[channel] = 1;
    return true;
  }

  #tell(channel: number): boolean {
    if (!this.#channels.tell(channel, 1)) return false;
    this.#puts[channel] = 0;
    return true;
  }
}

interface SendLaneParts {
  readonly number: number;
  readonly backend: Backend;
  readonly links: InnerLinks;
  readonly greeter: Greeter;
  readonly shape: RingShape;
  readonly makeStorage: MakeStorage;
  readonly signal: AbortSignal;
}

/** A lane of this side, with the session that it needs and the messages of its transfers. */
export class SendLane {
  readonly number: number;
  readonly peer: string;
  readonly lane: Lane;
  readonly messages: MessageQueue;
  /** The link to the peer's agent, for messages and its host memory. */
  readonly link: BackendLink;
  readonly ring: RingMemory;
  /** The ring. */
  readonly local: BackendRegion;
  /** The session with the peer's staging thread; undefined of a lane to host memory. */
  readonly session: SendSession | undefined;
  readonly #uses: readonly LinkUse[];
  readonly #greeter: Greeter;
  #closing: Promise<void> | undefined;

  static async open(options: LaneOptions, parts: SendLaneParts): Promise<SendLane> {
    const { peer, connectionInfo, timeoutMs } = options;
    const deadline = new Deadline(timeoutMs);
    const { backend, links, greeter, signal } = parts;
    const uses: LinkUse[] = [];
    const ring = new RingMemory(parts.shape, parts.makeStorage);
    let local: BackendRegion | undefined;
    try {
      uses.push(await links.use(peer, { timeoutMs, deadline, signal }));
      if (connectionInfo !== undefined) {
        uses.push(await links.use({ ...peer, connectionInfo }, { timeoutMs, deadline, signal }));
      }
      local = await backend.register(ring.memory);
      const session =
        connectionInfo === undefined
          ? undefined
          : await meet({ peer: peer.name, ring, local, link: (uses[1] as LinkUse).link, deadline }, parts);
      return new SendLane(options, { number: parts.number, uses, greeter, ring, local, session });
    } catch (error) {
      // The peer may have made a ring for it.
      const link = uses[1]?.link;
      if (link !== undefined) greeter.sayGoodbye(link, { lane: parts.number, from: 'sender', error });
      await local?.release().catch(() => {});
      ring.free();
      await Promise.allSettled(uses.map((use) => use.giveBack()));
      throw error;
    }
  }

  private constructor(
    { peer, messages }: LaneOptions,
    parts: Pick<SendLane, 'number' | 'ring' | 'local' | 'session'> & {
      readonly uses: readonly LinkUse[];
      readonly greeter: Greeter;
    },
  ) {
    const { number, uses, greeter, ring, local, session } = parts;
    this.number = number;
    this.peer = peer.name;
    this.#uses = uses;
    this.#greeter = greeter;
    this.ring = ring;
    this.local = local;
    this.session = session;
    this.link = (uses[0] as LinkUse).link;
    this.lane = new Lane(ring, session);
    this.messages = new MessageQueue(new StagedMessages(messages), this.link);
  }

  /** Why nothing goes on it any more. */
  get error(): WeftlineError | undefined {
    for (const { link } of this.#uses) if (link.error !== undefined) return link.error;
    return this.session?.error;
  }

  /** Goes on. True if something moved. */
  step(): boolean {
    const { error } = this;
    if (error !== undefined && this.lane.error === undefined) this.lane.fail(error);
    if (this.messages.isStuck) this.messages.send();
    try {
      return this.lane.step();
    } catch (thrown) {
      // What no job can be blamed for is the end of the way.
      this.lane.fail(this.error ?? asWeftlineError(thrown));
      return true;
    }
  }

  /** Host memory of the peer as its agent's backend published it. */
  importHost(info: Uint8Array, bytes: number): BackendRemoteRegion {
    return this.link.importRegion(info, { kind: 'host', bytes });
  }

  /** `fence` tells when no device touches the ring any more. */
  close(error: WeftlineError, fence: () => Promise<void>): Promise<void> {
    this.#closing ??= this.#close(error, fence);
    return this.#closing;
  }

  async #close(error: WeftlineError, fence: () => Promise<void>): Promise<void> {
    this.lane.fail(error);
    const link = this.#uses[1]?.link;
    if (link !== undefined) this.#greeter.sayGoodbye(link, { lane: this.number, from: 'sender', error });
    this.#greeter.forget(this.number);
    const { session, local, ring } = this;
    await endRing({ fence, session, local, ring, uses: this.#uses });
  }
}

interface Meeting {
  readonly peer: string;
  readonly ring: RingMemory;
  readonly local: BackendRegion;
  readonly link: BackendLink;
  readonly deadline: Deadline;
}

async function meet(
  { peer, ring, local, link, deadline }: Meeting,
  { number, greeter, signal }: SendLaneParts,
): Promise<SendSession> {
  const { shape } = ring;
  const count = channelsTo(link, shape.slots);
  const hello = { peer, lane: number, ring: local.info, shape, channels: count };
  const info = await greeter.meet({ ...hello, link, deadline, signal });
  try {
    const remote = link.importRegion(info, { kind: 'host', bytes: ring.memory.bytes });
    return new SendSession({ peer, ring, local, remote, channels: PieceChannels.open(link, count, ring, remote) });
  } catch (error) {
    throw asWeftlineError(error);
  }
}
