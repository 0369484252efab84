// Puts and signals on a flow of their own, in order: the carrier's channel for the agent's memory.
import { Block, defineLayout } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { Channel } from '../../../transport/host/channel.ts';
import type { Connection, MemoryRegion } from '../../../transport/index.ts';
import type { PartTable } from '../../../transport/part-table.ts';
import type { BackendChannel, BackendRegion, BackendRemoteRegion, PutPlace, SharedParts } from '../../backend.ts';

/** How metadata of an agent names a region that its peers reach over the transport. */
const multipathRegionInfo = defineLayout('MultipathRegionInfo', { region: 'u32', key: 'u32' }, 4);

export class MultipathChannel extends Channel implements BackendChannel {
  readonly #onClose: () => void;
  readonly #hasThreads: boolean;

  /** `flow`: that nothing else of the connection uses. */
  constructor(connection: Connection, flow: number, onClose: () => void) {
    super(connection.channelParts(flow));
    this.#hasThreads = connection.hasThreads;
    this.#onClose = onClose;
  }

  put({ local, localOffset, remote, remoteOffset, bytes }: PutPlace): boolean {
    if (!this.hasRoom) return false;
    if (bytes === 0) return true;
    const { number } = own(MultipathRegion, local).region;
    this.write(number, localOffset, own(MultipathRemoteRegion, remote), remoteOffset, bytes);
    return true;
  }

  signal(remote: BackendRemoteRegion, offset: number, add: number): boolean {
    if (!this.hasRoom) return false;
    this.add(own(MultipathRemoteRegion, remote), offset, add);
    return true;
  }

  async shareParts(table: PartTable, local: BackendRegion, remote: BackendRemoteRegion): Promise<SharedParts> {
    const { number } = own(MultipathRegion, local).region;
    const shared = await this.shareTable(table, number, own(MultipathRemoteRegion, remote));
    let isReleased = false;
    return {
      put: (first, count) => {
        if (!this.hasRoom) return false;
        if (isReleased) throw new WeftlineError('WL_CLOSED', 'The table of parts was released');
        this.writeRanges(shared, first, count);
        return true;
      },
      release: async () => {
        if (isReleased) return;
        isReleased = true;
        await this.unshareTable(shared);
      },
    };
  }

  async close(): Promise<void> {
    this.end(new WeftlineError('WL_CLOSED', 'The channel was closed'));
    this.#onClose();
  }

  get needsCalls(): boolean {
    return !this.#hasThreads && this.delivered < this.posted;
  }
}

// Registered memory of the transport, here and at the peer, and how it is named in metadata.

export class MultipathRegion implements BackendRegion {
  readonly info: Uint8Array;
  readonly region: MemoryRegion;

  constructor(region: MemoryRegion) {
    this.region = region;
    this.info = new Uint8Array(multipathRegionInfo.size);
    const block = new Block(multipathRegionInfo, this.info.buffer, 0);
    block.set('region', region.remote.remoteRegion);
    block.set('key', region.remote.remoteKey);
  }

  release(): Promise<void> {
    return this.region.close();
  }
}

export class MultipathRemoteRegion implements BackendRemoteRegion {
  readonly bytes: number;
  readonly remoteRegion: number;
  readonly remoteKey: number;

  constructor(info: Uint8Array, bytes: number) {
    if (info.length !== multipathRegionInfo.size) {
      throw new WeftlineError(
        'WL_PROTOCOL',
        `A region of multipath is named by ${multipathRegionInfo.size} bytes, not ${info.length}`,
      );
    }
    const block = new Block(multipathRegionInfo, info.buffer, info.byteOffset);
    this.bytes = bytes;
    this.remoteRegion = block.get('region');
    this.remoteKey = block.get('key');
  }
}

/** What came back from the agent must be what this backend made. */
export function own<T>(kind: abstract new (...parameters: never[]) => T, value: unknown): T {
  if (value instanceof kind) return value;
  throw new WeftlineError('WL_INTERNAL', `A ${kind.name} was expected`);
}
