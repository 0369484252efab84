// Puts and signals on a flow of their own, in order; their ends are counted in the order of posting.
import { Block, defineLayout } from '../../../abi/layout.ts';
import type { PartTable } from '../../../transport/part-table.ts';
import { asWeftlineError, invalidArgument, WeftlineError } from '../../../core/errors.ts';
import type { Connection, MemoryRegion, RequestHandle, Transport } from '../../../transport/index.ts';
import type { BackendChannel, BackendRegion, BackendRemoteRegion, PutPlace, SharedParts } from '../../backend.ts';
import type { RangesPart, SharedRangesNames } from '../../../transport/host/memory-region.ts';

/** How metadata of an agent names a region that its peers reach over the transport. */
const multipathRegionInfo = defineLayout('MultipathRegionInfo', { region: 'u32', key: 'u32' }, 4);

/** Operations under way. A power of two; all channels share the transport's requests, of which there may be none left. */
const MAX_PENDING = 512;

interface PostedWrite {
  region: MemoryRegion;
  offset: number;
  bytes: number;
  readonly flow: number;
  readonly pinned: boolean;
  remoteRegion: number;
  remoteKey: number;
  remoteOffset: number;
}

/** How its operations go. */
interface ChannelWay {
  readonly flow: number;
  /** All of them on one lane. */
  readonly pinned: boolean;
}

/** What a channel needs of its link. */
interface ChannelLink {
  readonly transport: Transport;
  readonly connection: Connection;
  readonly error: WeftlineError | undefined;
}

export class MultipathChannel implements BackendChannel {
  posted = 0;
  delivered = 0;
  error: WeftlineError | undefined;
  readonly #link: ChannelLink;
  readonly #way: ChannelWay;
  readonly #requests = new Float64Array(MAX_PENDING);
  readonly #onClose: () => void;
  /** Requests that were withdrawn and have not ended. */
  #leaving = 0;
  /** What is posted. Objects of the channel, so that nothing is made per post; the first put makes this one. */
  #write: PostedWrite | undefined;
  readonly #signal = { flow: 0, remoteRegion: 0, remoteKey: 0, remoteOffset: 0, add: 0 };

  constructor(link: ChannelLink, way: ChannelWay, onClose: () => void) {
    this.#link = link;
    this.#way = way;
    this.#signal.flow = way.flow;
    this.#onClose = onClose;
  }

  put(place: PutPlace): boolean {
    if (!this.#hasRoom()) return false;
    if (place.bytes === 0) return true;
    const remote = own(MultipathRemoteRegion, place.remote);
    const { region } = own(MultipathRegion, place.local);
    const write = (this.#write ??= {
      region,
      offset: 0,
      bytes: 0,
      ...this.#way,
      remoteRegion: 0,
      remoteKey: 0,
      remoteOffset: 0,
    });
    write.region = region;
    write.offset = place.localOffset;
    write.bytes = place.bytes;
    write.remoteRegion = remote.remoteRegion;
    write.remoteKey = remote.remoteKey;
    write.remoteOffset = place.remoteOffset;
    return this.#note(this.#link.connection.write(write));
  }

  signal(remote: BackendRemoteRegion, offset: number, add: number): boolean {
    if (!this.#hasRoom()) return false;
    const signal = this.#signal;
    const { remoteRegion, remoteKey } = own(MultipathRemoteRegion, remote);
    signal.remoteRegion = remoteRegion;
    signal.remoteKey = remoteKey;
    signal.remoteOffset = offset;
    signal.add = add;
    return this.#note(this.#link.connection.signal(signal));
  }

  async shareParts(table: PartTable, local: BackendRegion, remote: BackendRemoteRegion): Promise<MultipathParts> {
    const { connection } = this.#link;
    const { remoteRegion, remoteKey } = own(MultipathRemoteRegion, remote);
    const region = own(MultipathRegion, local).region.number;
    return new MultipathParts({
      channel: this,
      connection,
      way: this.#way,
      ranges: await connection.shareRanges(table, { region, remoteRegion, remoteKey }),
    });
  }

  /** Hot path. Of MultipathParts. */
  putRanges(part: RangesPart): boolean {
    if (!this.#hasRoom()) return false;
    return this.#note(this.#link.connection.writeRanges(part));
  }

  /** Hot path. True if something was delivered or failed. */
  look(): boolean {
    const { transport } = this.#link;
    const before = this.delivered;
    while (this.delivered < this.posted && this.error === undefined) {
      const request = this.#requests[this.delivered % MAX_PENDING] as RequestHandle;
      if (transport.state(request) === 'pending') break;
      try {
        transport.take(request);
        this.delivered++;
      } catch (error) {
        this.#fail(this.#link.error ?? asWeftlineError(error), this.delivered + 1);
        return true;
      }
    }
    return this.delivered > before;
  }

  /** The link has ended. */
  abandon(error: WeftlineError | undefined): void {
    this.error ??= error;
  }

  async close(): Promise<void> {
    if (this.error === undefined) this.#fail(new WeftlineError('WL_CLOSED', 'The channel was closed'), this.delivered);
    this.#onClose();
  }

  get needsCalls(): boolean {
    return !this.#link.connection.hasThreads && this.delivered < this.posted;
  }

  get isQuiet(): boolean {
    return this.#leaving === 0;
  }

  #hasRoom(): boolean {
    if (this.error !== undefined) throw this.error;
    return this.posted - this.delivered < MAX_PENDING && this.#link.transport.hasRoom;
  }

  #note(request: RequestHandle): boolean {
    this.#requests[this.posted % MAX_PENDING] = request;
    this.posted++;
    return true;
  }

  /** Withdraws requests from number `first` on; their ends are nobody's any more. */
  #fail(error: WeftlineError, first: number): void {
    this.error = error;
    const { transport, connection } = this.#link;
    if (transport.failure !== undefined) return;
    for (let at = first; at < this.posted; at++) {
      const request = this.#requests[at % MAX_PENDING] as RequestHandle;
      if (connection.error === undefined) connection.cancel(request);
      this.#leaving++;
      const onEnd = (): void => void this.#leaving--;
      void transport.wait(request).then(onEnd, onEnd);
    }
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

// Puts of many ranges, each posted with one command: the engine's thread reads the table.

interface MultipathPartsOptions {
  readonly channel: MultipathChannel;
  readonly connection: Connection;
  readonly way: Pick<RangesPart, 'flow' | 'pinned'>;
  readonly ranges: SharedRangesNames;
}

class MultipathParts implements SharedParts {
  readonly #channel: MultipathChannel;
  readonly #connection: Connection;
  readonly #length: number;
  /** What is posted. One object, so that nothing is made per post. */
  readonly #part: { -readonly [K in keyof RangesPart]: RangesPart[K] };
  #isReleased = false;

  constructor({ channel, connection, way, ranges }: MultipathPartsOptions) {
    this.#channel = channel;
    this.#connection = connection;
    this.#length = ranges.table.count;
    this.#part = { ranges, first: 0, count: 0, ...way };
  }

  put(first: number, count: number): boolean {
    const length = this.#length;
    if (!(Number.isInteger(first) && first >= 0 && first <= length)) {
      throw invalidArgument('first', first, `a number of a part, up to ${length}`);
    }
    if (!(Number.isInteger(count) && count >= 0 && count <= length - first)) {
      throw invalidArgument('count', count, `up to ${length - first}, which the table has from part ${first} on`);
    }
    if (this.#isReleased) throw new WeftlineError('WL_CLOSED', 'The table of parts was released');
    const part = this.#part;
    part.first = first;
    part.count = count;
    return this.#channel.putRanges(part);
  }

  async release(): Promise<void> {
    if (this.#isReleased) return;
    this.#isReleased = true;
    if (this.#connection.error === undefined) await this.#connection.unshareRanges(this.#part.ranges);
  }
}
