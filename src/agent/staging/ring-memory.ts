// Memory that pieces travel through: a head with counters, then slots; host memory that peers and devices reach.
import { alignUp } from '../../abi/layout.ts';
import { NativeBlock } from '../../native/library.ts';
import type { Settings } from '../../settings/settings.ts';
import type { AgentMemory, BackendRegion } from '../backend.ts';
import type { LinkUse } from './inner-links.ts';
import {
  MAX_PIECE_FRAGMENTS,
  MAX_STAGING_CHANNELS,
  MAX_STAGING_SLOTS,
  pieceFragment,
  pieceHead,
  stagingCounterOffset,
  stagingRingHead,
} from './wire-layout.ts';

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

interface RingParts {
  /** Resolves when no device touches the ring any more. */
  readonly fence: () => Promise<void>;
  readonly session?: { close(): Promise<void> } | undefined;
  /** The ring as the backend knows it. */
  readonly local?: BackendRegion | undefined;
  readonly ring?: Pick<RingMemory, 'free'> | undefined;
  readonly uses: readonly LinkUse[];
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
