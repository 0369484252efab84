// Rings that pieces travel through: their layout, which both sides know, their memory, and the channels between two of them.
import { alignUp, defineLayout } from '../../abi/layout.ts';
import type { WeftlineError } from '../../core/errors.ts';
import { NativeBlock } from '../../native/library.ts';
import type { Settings } from '../../settings/settings.ts';
import type {
  AgentMemory,
  BackendChannel,
  BackendLink,
  BackendRegion,
  BackendRemoteRegion,
  PutPlace,
} from '../backend.ts';

/** Most pieces of a link that are under way. */
export const MAX_STAGING_SLOTS = 64;

/** Most channels that the pieces of a ring take in turn: a transport has no more engines. */
export const MAX_STAGING_CHANNELS = 16;
/** Each in a cache line of its own, in numbers of 64 bits: different engines add to them. */
const COUNTER_STRIDE = 8;

/**
 * At the begin of a ring. Slot n belongs to channel n modulo their number; pieces of a channel take its slots in turn.
 * Channels overtake each other, so that each has a counter. At the receiver of pieces they are how many have arrived: the
 * sender adds to them by signals, behind the bytes. At the sender they are how many came back, and `status` says by slot why
 * a piece was refused; the receiver writes it before its signal. `status` of the receiver is where it sends that from.
 */
export const stagingRingHead = defineLayout(
  'StagingRingHead',
  {
    counters: { of: 'u64', count: MAX_STAGING_CHANNELS * COUNTER_STRIDE },
    status: { of: 'u64', count: MAX_STAGING_SLOTS },
  },
  4096,
);

/** The place of a channel's counter in the ring. */
export function stagingCounterOffset(channel: number): number {
  return stagingRingHead.offset.counters + channel * COUNTER_STRIDE * 8;
}

/** `nothing`: the sender gave the piece up. */
export const pieceKinds = { nothing: 0, write: 1, read: 2, signal: 3 } as const;

/** Why a piece was refused. */
export const pieceStatuses = { good: 0, unauthorized: 1, failed: 2 } as const;

/**
 * Begins a slot. All fragments lie in one region of the receiver; where the bytes begin follows from their number (`dataOffsetOf`).
 * A signal adds `add` to the cell at `offset`, which then holds `sum` if `hasSum` is 1: it may be written instead. Behind
 * its head stand words, by channel: how many pieces of that channel come before it. They wrap.
 */
export const pieceHead = defineLayout(
  'StagedPieceHead',
  {
    kind: 'u32',
    region: 'u32',
    key: 'u64',
    fragments: 'u32',
    offset: 'u64',
    add: 'u64',
    sum: 'u64',
    hasSum: 'u32',
  },
  64,
);

/** One fragment behind the head, which says how many there are. `slotOffset` counts from the first of the bytes. */
export const pieceFragment = defineLayout('StagedFragment', { remoteOffset: 'u64', bytes: 'u32', slotOffset: 'u32' });

export const MAX_PIECE_FRAGMENTS = 2048;

/** The last place at which bytes of a slot may begin. */
const MAX_DATA_OFFSET = alignUp(pieceHead.size + MAX_PIECE_FRAGMENTS * pieceFragment.size, 4096);
/** Bytes of a slot begin at a multiple of it. */
const DATA_ALIGNMENT = 256;

export interface RingShape {
  readonly slots: number;
  /** Most bytes of a piece. */
  readonly pieceBytes: number;
}

/** Slots for each lane of a link, where the settings leave it open: as many as it takes to keep the lane busy, */
const SLOTS_OF_LANE = 4;
/** but not fewer than one lane alone can use. */
const MIN_SLOTS = 8;

/** The shape of rings of a staging thread whose backend's links have so many lanes. */
export function ringShapeOf(
  { stagingPieces, stagingPieceBytes }: Pick<Settings, 'stagingPieces' | 'stagingPieceBytes'>,
  lanes: number,
): RingShape {
  const slots = Math.min(Math.max(SLOTS_OF_LANE * lanes, MIN_SLOTS), MAX_STAGING_SLOTS);
  return { slots: stagingPieces || slots, pieceBytes: stagingPieceBytes };
}

function slotBytesOf({ pieceBytes }: RingShape): number {
  return MAX_DATA_OFFSET + alignUp(pieceBytes, 4096);
}

export function ringBytesOf(shape: RingShape): number {
  return stagingRingHead.size + shape.slots * slotBytesOf(shape);
}

/** How many slots of a ring belong to that channel of so many: they are dealt out in turn. */
export function slotsOfChannel(channel: number, channels: number, slots: number): number {
  return Math.ceil((slots - channel) / channels);
}

/** The slot of that number among those of the channel. */
export function slotOf(channel: number, channels: number, number: number): number {
  return number * channels + channel;
}

export function channelOf(slot: number, channels: number): number {
  return slot % channels;
}

/** The place in its slot at which the bytes of a piece begin. */
export function dataOffsetOf(fragments: number): number {
  return alignUp(pieceHead.size + fragments * pieceFragment.size, DATA_ALIGNMENT);
}

/** Host memory for a ring; `free` when nothing touches it any more. */
export interface RingStorage {
  readonly address: number;
  readonly buffer: ArrayBufferLike;
  readonly byteOffset: number;
  free(): void;
}

export type MakeStorage = (bytes: number) => RingStorage;

/** Memory of a ring for links on which no GPU of this side takes part. */
export function plainStorage(bytes: number): RingStorage {
  const block = new NativeBlock(bytes);
  return { address: block.address, buffer: block.bytes.buffer, byteOffset: block.bytes.byteOffset, free: () => {} };
}

export class RingMemory {
  readonly shape: RingShape;
  readonly slotBytes: number;
  /** Words of the whole ring. */
  readonly words: Uint32Array;
  /** Counters by channel: one word each, which wraps. */
  readonly counters: readonly Int32Array[];
  readonly memory: AgentMemory;
  readonly #storage: RingStorage;

  constructor(shape: RingShape, makeStorage: MakeStorage) {
    const bytes = ringBytesOf(shape);
    const storage = makeStorage(bytes);
    const { address, buffer, byteOffset } = storage;
    this.shape = shape;
    this.slotBytes = slotBytesOf(shape);
    this.words = new Uint32Array(buffer, byteOffset, bytes / 4);
    this.counters = Array.from(
      { length: MAX_STAGING_CHANNELS },
      (_, channel) => new Int32Array(buffer, byteOffset + stagingCounterOffset(channel), 1),
    );
    this.memory = {
      kind: 'host',
      address,
      bytes,
      view: new Uint8Array(buffer, byteOffset, bytes),
      device: undefined,
      shared: undefined,
    };
    this.#storage = storage;
  }

  get address(): number {
    return this.memory.address;
  }

  /** The slot's offset from the begin of the ring. */
  slotOffset(slot: number): number {
    return stagingRingHead.size + slot * this.slotBytes;
  }

  statusOffset(slot: number): number {
    return stagingRingHead.offset.status + slot * 8;
  }

  /** Nothing touches it any more. */
  free(): void {
    this.#storage.free();
  }
}

interface RingPair {
  readonly ring: RingMemory;
  /** The ring, and the peer's, as the backend knows them. */
  readonly local: BackendRegion;
  readonly remote: BackendRemoteRegion;
}

/** How many channels the pieces of a ring of so many slots take to that peer. */
export function channelsTo({ lanes = 1 }: Pick<BackendLink, 'lanes'>, slots: number): number {
  return Math.min(lanes, slots, MAX_STAGING_CHANNELS);
}

/** Between a ring and one of the same shape at the peer: a channel per lane of the link. Hot path: no allocation. */
export class PieceChannels {
  readonly count: number;
  readonly ring: RingMemory;
  readonly #channels: readonly BackendChannel[];
  /** The last put between the rings. */
  readonly place: PutPlace;
  /** What each counter, which wraps, has told so far. */
  readonly #arrived: Float64Array;

  constructor(channels: readonly BackendChannel[], { ring, local, remote }: RingPair) {
    this.count = channels.length;
    this.ring = ring;
    this.#channels = channels;
    this.place = { local, localOffset: 0, remote, remoteOffset: 0, bytes: 0 };
    this.#arrived = new Float64Array(channels.length);
  }

  static open(link: BackendLink, count: number, rings: RingPair): PieceChannels {
    return new PieceChannels(
      Array.from({ length: count }, (_, lane) => link.openChannel({ lane })),
      rings,
    );
  }

  /** Why nothing goes any more. */
  get error(): WeftlineError | undefined {
    for (const { error } of this.#channels) if (error !== undefined) return error;
    return undefined;
  }

  /** Pieces of this channel that the other side has told of so far. */
  arrived(channel: number): number {
    const arrived = this.#arrived;
    const counter = Atomics.load(this.ring.counters[channel]!, 0);
    return (arrived[channel]! += (counter - arrived[channel]!) | 0);
  }

  /** Puts bytes of the ring to the same place of the other one. False if there is no room now. */
  put(channel: number, offset: number, bytes: number): boolean {
    const { place } = this;
    place.localOffset = place.remoteOffset = offset;
    place.bytes = bytes;
    return this.putPlace(channel, place);
  }

  putPlace(channel: number, place: PutPlace): boolean {
    return this.#channels[channel]!.put(place);
  }

  /** Tells the other side of so many pieces of the channel, behind all that was put on it. False if there is no room now. */
  tell(channel: number, pieces: number): boolean {
    return this.#channels[channel]!.signal(this.place.remote, stagingCounterOffset(channel), pieces);
  }

  /** Tells whether nothing that is posted now reads memory of this side any more. */
  fence(): () => boolean {
    const marks = this.#channels.map(({ posted }) => posted);
    return () =>
      this.#channels.every(({ error, delivered, isQuiet }, channel) =>
        error === undefined ? delivered >= marks[channel]! : isQuiet !== false,
      );
  }

  /** The link may be one that others go on with. All are closed, whatever becomes of one; then the first failure is thrown. */
  async close(): Promise<void> {
    const ends = await Promise.allSettled(this.#channels.map((channel) => channel.close()));
    for (const end of ends) if (end.status === 'rejected') throw end.reason;
  }
}

interface RingParts {
  /** Resolves when no device touches the ring any more. */
  readonly fence: () => Promise<void>;
  readonly session?: { close(): Promise<void> } | undefined;
  /** The ring as the backend knows it. */
  readonly local?: BackendRegion | undefined;
  readonly ring?: Pick<RingMemory, 'free'> | undefined;
  /** Links that it holds. */
  readonly uses: readonly { giveBack(): Promise<void> }[];
}

/** Fails with the first error, having tried everything; the ring is then kept. */
export async function endRing({ fence, session, local, ring, uses }: RingParts): Promise<void> {
  const ends: PromiseSettledResult<unknown>[] = [];
  const steps = [fence, async () => session?.close(), async () => local?.release()];
  for (const step of steps) ends.push(...(await Promise.allSettled([step()])));
  if (ends.every(({ status }) => status === 'fulfilled')) ring?.free();
  ends.push(...(await Promise.allSettled(uses.map((use) => use.giveBack()))));
  for (const end of ends) if (end.status === 'rejected') throw end.reason;
}
