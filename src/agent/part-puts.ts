// Puts of many parts over a channel of any backend: as one operation where the channel can, else one by one.
import type { PartTable } from '../transport/part-table.ts';
import type { BackendChannel, BackendRegion, BackendRemoteRegion, PutPlace, SharedParts } from './backend.ts';

interface PartPutsOptions {
  readonly channel: BackendChannel;
  /** Filled in again and again by the caller. Its indices of regions mean nothing here. */
  readonly table: PartTable;
  readonly local: BackendRegion;
  readonly remote: BackendRemoteRegion;
}

export class PartPuts {
  readonly #channel: BackendChannel;
  readonly #table: PartTable;
  readonly #shared: SharedParts | undefined;
  readonly #place: PutPlace;

  /** Fails as its link does. */
  static async open(options: PartPutsOptions): Promise<PartPuts> {
    const { channel, table, local, remote } = options;
    return new PartPuts(options, await channel.shareParts?.(table, local, remote));
  }

  private constructor({ channel, table, local, remote }: PartPutsOptions, shared: SharedParts | undefined) {
    this.#channel = channel;
    this.#table = table;
    this.#shared = shared;
    this.#place = { local, localOffset: 0, remote, remoteOffset: 0, bytes: 0 };
  }

  /**
   * Hot path: no allocation, never waits. Puts parts of the table from number `first` on, at most `count`. Returns how many
   * of them it took: for the others there was no room, and the caller goes on with them after the next look at its agent.
   * The entries must stay as they are until the channel has delivered all that it has posted by then.
   */
  put(first: number, count: number): number {
    if (this.#shared !== undefined) return this.#shared.put(first, count) ? count : 0;
    const { localOffset, remoteOffset, bytes } = this.#table;
    const place = this.#place;
    const end = first + count;
    for (let index = first; index < end;) {
      place.localOffset = localOffset[index]!;
      place.remoteOffset = remoteOffset[index]!;
      place.bytes = bytes[index]!;
      let next = index + 1;
      while (
        next < end &&
        localOffset[next] === place.localOffset + place.bytes &&
        remoteOffset[next] === place.remoteOffset + place.bytes
      ) {
        place.bytes += bytes[next++]!;
      }
      if (!this.#channel.put(place)) return index - first;
      index = next;
    }
    return count;
  }

  /** The table is the caller's alone again. Nothing of it may be under way. Idempotent. */
  async release(): Promise<void> {
    await this.#shared?.release();
  }
}
