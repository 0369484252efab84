// The ends of a connection on this side: names that engines reserve for it, and what they make of them.
import { encodeError } from '../../core/errors.ts';
import type { EngineGroup } from './engine-group.ts';
import type { Meeting } from './greeting.ts';

/** One lane's end on this side: an engine, and that engine's number of the connection. */
export interface LaneEnd {
  readonly engine: number;
  readonly number: number;
}

/** An engine's name for a connection to be. */
export interface Reserved {
  readonly engine: number;
  readonly id: number;
}

export class LaneEnds {
  readonly #group: EngineGroup;
  /** The engine that the next connection begins with, so that those with fewer lanes than there are engines use all. */
  #next = 0;

  constructor(group: EngineGroup) {
    this.#group = group;
  }

  /** Names for a connection on so many engines. */
  async reserve(lanes: number): Promise<readonly Reserved[]> {
    const first = this.#next;
    const engines = this.#group.links.length;
    this.#next = (first + lanes) % engines;
    const reserved = await allOrThese(
      Array.from({ length: lanes }, async (_, lane): Promise<Reserved> => {
        const engine = (first + lane) % engines;
        return { engine, id: await this.#group.call(engine, 'reserve') };
      }),
      (some) => this.unreserve(some),
    );
    return reserved;
  }

  /** Names that have led to no connection. */
  async unreserve(reserved: readonly Reserved[]): Promise<void> {
    if (this.#group.failure !== undefined) return;
    await Promise.all(reserved.map(({ engine, id }) => this.#group.call(engine, 'unreserve', id)));
  }

  /** Gives each lane of a meeting to its engine, which closes its sockets from then on, also if it fails. */
  async connect(
    { lanes, paths, peerName, segmentBytes }: Meeting,
    reserved: readonly Reserved[],
  ): Promise<readonly LaneEnd[]> {
    await this.unreserve(reserved.slice(lanes.length));
    return allOrThese(
      lanes.map(async (lane, at): Promise<LaneEnd> => {
        const { engine } = reserved[at] as Reserved;
        const endpoint = paths.endpoint(at);
        const options = { ...lane, peerName, segmentBytes, endpoint, keepsPlaces: lanes.length > 1 };
        return { engine, number: await this.#group.call(engine, 'connect', options) };
      }),
      async (some, reason) => {
        const error = encodeError(reason);
        await Promise.all(
          some.map(({ engine, number }) => this.#group.call(engine, 'end', { connection: number, error })),
        );
      },
    );
  }
}

/** What all promises bring; if one fails, `undo` gets what the others brought, and its reason is thrown. */
async function allOrThese<T>(
  promises: readonly Promise<T>[],
  undo: (some: readonly T[], reason: unknown) => Promise<void>,
): Promise<readonly T[]> {
  const settled = await Promise.allSettled(promises);
  const values = settled.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
  const failed = settled.find((one) => one.status === 'rejected');
  if (failed === undefined) return values;
  await undo(values, failed.reason);
  throw failed.reason;
}
