// The channels of a ring, one per lane of the link: each has slots and a counter of its own, and pieces take the freest.
import { WeftlineError } from '../../core/errors.ts';
import type { BackendChannel, BackendLink, BackendRemoteRegion, BackendTransfer, PutPlace } from '../backend.ts';
import type { RingMemory } from './ring-memory.ts';
import { MAX_STAGING_CHANNELS, stagingCounterOffset } from './wire-layout.ts';

export function tryPut(channel: BackendChannel, place: PutPlace): boolean {
  try {
    return channel.put(place);
  } catch (error) {
    return isFull(error);
  }
}

export function trySignal(channel: BackendChannel, remote: BackendRemoteRegion, offset: number, add: number): boolean {
  try {
    return channel.signal(remote, offset, add);
  } catch (error) {
    return isFull(error);
  }
}

export function tryPost(transfer: BackendTransfer): boolean {
  try {
    transfer.post();
    return true;
  } catch (error) {
    return isFull(error);
  }
}

/** False if it is only full. */
function isFull(error: unknown): false {
  if (error instanceof WeftlineError && error.code === 'WL_BUSY') return false;
  throw error;
}

/** How many channels the pieces of a ring of so many slots take to that peer. */
export function channelsTo({ lanes = 1 }: Pick<BackendLink, 'lanes'>, slots: number): number {
  return Math.min(lanes, slots, MAX_STAGING_CHANNELS);
}

/** Hot path: no allocation. */
export class PieceChannels {
  readonly count: number;
  readonly #channels: readonly BackendChannel[];
  /** The other ring. */
  readonly #remote: BackendRemoteRegion;
  readonly #counters: readonly Int32Array[];
  /** What each counter, which wraps, has told so far. */
  readonly #arrived: Float64Array;

  constructor(channels: readonly BackendChannel[], ring: RingMemory, remote: BackendRemoteRegion) {
    this.count = channels.length;
    this.#channels = channels;
    this.#remote = remote;
    this.#counters = ring.counters;
    this.#arrived = new Float64Array(channels.length);
  }

  static open(link: BackendLink, count: number, ring: RingMemory, remote: BackendRemoteRegion): PieceChannels {
    const channels = Array.from({ length: count }, (_, lane) => link.openChannel({ lane }));
    return new PieceChannels(channels, ring, remote);
  }

  /** Why nothing goes any more. */
  get error(): WeftlineError | undefined {
    for (const { error } of this.#channels) if (error !== undefined) return error;
    return undefined;
  }

  /** Pieces of this channel that the other side has told of so far. */
  arrived(channel: number): number {
    const arrived = this.#arrived;
    const counter = Atomics.load(this.#counters[channel] as Int32Array, 0);
    return (arrived[channel]! += (counter - arrived[channel]!) | 0);
  }

  /** False if there is no room now. */
  put(channel: number, place: PutPlace): boolean {
    return tryPut(this.#channels[channel] as BackendChannel, place);
  }

  /** Tells the other side of so many pieces of the channel, behind all that was put on it. False if there is no room now. */
  tell(channel: number, pieces: number): boolean {
    return trySignal(this.#channels[channel] as BackendChannel, this.#remote, stagingCounterOffset(channel), pieces);
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
