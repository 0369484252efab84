// A lane to one peer with all that it holds: links, ring, session, messages. Made when it is first needed.
import { putWide, wordOffsets } from '../../abi/layout.ts';
import { Deadline } from '../../core/deadline.ts';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import type { Backend, BackendLink, BackendRegion, PutPlace } from '../backend.ts';
import type { Greeter, InnerLinks, LinkUse } from './greeter.ts';
import { Lane, type LaneCarrier, type PeerMemory, type Piece, type PieceWay } from './lane.ts';
import {
  channelOf,
  channelsTo,
  dataOffsetOf,
  endRing,
  type MakeStorage,
  PieceChannels,
  pieceFragment,
  pieceHead,
  pieceKinds,
  pieceStatuses,
  RingMemory,
  type RingShape,
} from './ring.ts';
import { MessageQueue } from './staging-board.ts';
import type { LaneOptions, RemoteMemoryName, StagedName } from './staging-thread.ts';

const head = wordOffsets(pieceHead);
const fragment = wordOffsets(pieceFragment);
const HEAD_WORDS = pieceHead.size / 4;
const FRAGMENT_WORDS = pieceFragment.size / 4;

/** What was put of the piece of a channel before there was no room. */
const steps = { nothing: 0, slot: 1, source: 2, passedOver: 3 } as const;

/** The sender's side of two rings: puts pieces into the peer's, and reads from its own what became of them. Hot path. */
export class SendSession implements LaneCarrier, PieceWay {
  readonly sendsFromPlace = true;
  readonly peer: string;
  readonly ring: RingMemory;
  readonly #channels: PieceChannels;
  /** The last put from memory that is no ring. */
  readonly #direct: PutPlace;
  /** Columns by channel: the step of its piece, and pieces that were described, which wraps. */
  readonly #steps: Uint8Array;
  readonly #described: Uint32Array;

  constructor(peer: string, channels: PieceChannels) {
    this.peer = peer;
    this.ring = channels.ring;
    this.#channels = channels;
    this.#direct = { ...channels.place };
    this.#steps = new Uint8Array(channels.count);
    this.#described = new Uint32Array(channels.count);
  }

  /** Why nothing goes any more. */
  get error(): WeftlineError | undefined {
    return this.#channels.error;
  }

  get count(): number {
    return this.#channels.count;
  }

  returned(channel: number): number {
    return this.#channels.arrived(channel);
  }

  placeOf(ranges: number): number {
    return dataOffsetOf(ranges);
  }

  describe(slot: number, piece: Piece): void {
    const { words } = this.ring;
    const { number, key } = piece.remote as StagedName;
    const { kind, count, sum } = piece;
    const at = this.ring.slotOffset(slot) / 4;
    const isSignal = kind === pieceKinds.signal;
    if (isSignal) words.set(this.#described, at + HEAD_WORDS);
    this.#described[channelOf(slot, this.count)]!++;
    words[at + head.kind] = kind;
    words[at + head.region] = number;
    putWide(words, at + head.key, key);
    words[at + head.fragments] = count;
    putWide(words, at + head.offset, isSignal ? piece.remoteOffset[0]! : 0);
    putWide(words, at + head.add, piece.increment);
    putWide(words, at + head.sum, Math.max(sum, 0));
    words[at + head.hasSum] = sum < 0 ? 0 : 1;
    words[this.ring.statusOffset(slot) / 4] = pieceStatuses.good;
    for (let range = 0; range < count; range++) {
      const first = at + HEAD_WORDS + range * FRAGMENT_WORDS;
      putWide(words, first + fragment.remoteOffset, piece.remoteOffset[range]!);
      words[first + fragment.bytes] = piece.bytes[range]!;
      words[first + fragment.slotOffset] = piece.place[range]!;
    }
  }

  post(slot: number, piece: Piece): boolean {
    const { kind, count, length, source } = piece;
    const channel = channelOf(slot, this.count);
    const data = dataOffsetOf(count);
    if (this.#steps[channel] === steps.nothing) {
      const isWhole = kind !== pieceKinds.read && source === undefined;
      const bytes = kind === pieceKinds.read ? pieceHead.size + count * pieceFragment.size : data;
      if (!this.#channels.put(channel, this.ring.slotOffset(slot), isWhole ? data + length : bytes)) return false;
      this.#steps[channel] = steps.slot;
    }
    if (source !== undefined && this.#steps[channel] === steps.slot) {
      const place = this.#direct;
      place.local = source;
      place.localOffset = piece.sourceOffset;
      place.remoteOffset = this.ring.slotOffset(slot) + data;
      place.bytes = length;
      if (!this.#channels.putPlace(channel, place)) return false;
      this.#steps[channel] = steps.source;
    }
    return this.#tell(channel);
  }

  skip(slot: number): boolean {
    const channel = channelOf(slot, this.count);
    if (this.#steps[channel] !== steps.passedOver) {
      // What was put of a piece that was given up is overwritten before the signal tells of it.
      const at = this.ring.slotOffset(slot);
      this.ring.words[at / 4 + head.kind] = pieceKinds.nothing;
      if (!this.#channels.put(channel, at, pieceHead.size)) return false;
      this.#steps[channel] = steps.passedOver;
    }
    return this.#tell(channel);
  }

  isBack(slot: number): boolean {
    const status = this.ring.words[this.ring.statusOffset(slot) / 4]!;
    if (status === pieceStatuses.good) return true;
    const { peer } = this;
    const details = { peer };
    if (status === pieceStatuses.unauthorized) {
      throw new WeftlineError('WL_UNAUTHORIZED', `${peer} has taken its memory back, or never offered it`, { details });
    }
    throw new WeftlineError('WL_PEER_FAILED', `${peer} could not copy between its device and pinned memory`, {
      details,
    });
  }

  isDrained(): boolean {
    return true;
  }

  /** Tells whether nothing that is on its way now is read from memory of this side any more. */
  fence(): () => boolean {
    return this.#channels.fence();
  }

  close(): Promise<void> {
    return this.#channels.close();
  }

  #tell(channel: number): boolean {
    if (!this.#channels.tell(channel, 1)) return false;
    this.#steps[channel] = steps.nothing;
    return true;
  }
}

interface SendLaneParts {
  /** Under which the peer knows it. Numbers are used again, these are not. */
  readonly id: number;
  readonly backend: Backend;
  readonly links: InnerLinks;
  readonly greeter: Greeter;
  readonly shape: RingShape;
  readonly makeStorage: MakeStorage;
  /** Resolves when no device touches the ring any more. */
  readonly fence: () => Promise<void>;
  readonly signal: AbortSignal;
}

/** What a lane holds, as far as it is open. */
interface Held {
  readonly uses: LinkUse[];
  readonly ring: RingMemory;
  local?: BackendRegion;
  session?: SendSession;
}

/** A lane of this side, with the session that it needs and the messages of its transfers. */
export class SendLane {
  readonly number: number;
  readonly id: number;
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
  readonly #held: Held;
  readonly #parts: SendLaneParts;
  #closing: Promise<void> | undefined;

  static async open(options: LaneOptions, parts: SendLaneParts): Promise<SendLane> {
    const { peer, connectionInfo, timeoutMs } = options;
    const { id, backend, links, greeter, signal } = parts;
    const wait = { timeoutMs, deadline: new Deadline(timeoutMs), signal };
    const held: Held = { uses: [], ring: new RingMemory(parts.shape, parts.makeStorage) };
    const { uses, ring } = held;
    try {
      uses.push(await links.use(peer, wait));
      if (connectionInfo !== undefined) uses.push(await links.use({ ...peer, connectionInfo }, wait));
      const local = await backend.register(ring.memory);
      held.local = local;
      const link = uses[1]?.link;
      if (link !== undefined) {
        const channels = channelsTo(link, ring.shape.slots);
        const info = await greeter.meet({ ...ring.shape, lane: id, ring: local.info, channels }, peer.name, link, wait);
        const remote = link.importRegion(info, { kind: 'host', bytes: ring.memory.bytes });
        const opened = PieceChannels.open(link, channels, { ring, local, remote });
        held.session = new SendSession(peer.name, opened);
      }
      return new SendLane(options, parts, held, local);
    } catch (error) {
      // The peer may have made a ring for it.
      await end(held, parts, error).catch(() => {});
      throw error;
    }
  }

  private constructor({ number, peer, messages }: LaneOptions, parts: SendLaneParts, held: Held, local: BackendRegion) {
    const { uses, ring, session } = held;
    this.number = number;
    this.id = parts.id;
    this.peer = peer.name;
    this.#held = held;
    this.#parts = parts;
    this.ring = ring;
    this.local = local;
    this.session = session;
    this.link = uses[0]!.link;
    this.lane = new Lane(ring, session);
    this.messages = new MessageQueue(messages, this.link);
  }

  /** Why nothing goes on it any more. */
  get error(): WeftlineError | undefined {
    for (const { link } of this.#held.uses) if (link.error !== undefined) return link.error;
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

  /** Memory of the peer by its name. */
  memoryOf(name: RemoteMemoryName): PeerMemory {
    return 'info' in name ? this.link.importRegion(name.info, { kind: 'host', bytes: name.bytes }) : name;
  }

  close(error: WeftlineError): Promise<void> {
    this.lane.fail(error);
    this.#closing ??= end(this.#held, this.#parts, error);
    return this.#closing;
  }
}

async function end(held: Held, { id, greeter, fence }: SendLaneParts, error: unknown): Promise<void> {
  const link = held.uses[1]?.link;
  if (link !== undefined) greeter.sayGoodbye(link, 'sender', id, error);
  await endRing({ ...held, fence });
}
