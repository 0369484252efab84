// The way to one peer over the transport: prepared transfers, messages behind their data, channels.
import { alignUp, Block, defineLayout } from '../../../abi/layout.ts';
import { asWeftlineError, WeftlineError } from '../../../core/errors.ts';
import { Channel } from '../../../transport/host/channel.ts';
import type { Connection, MemoryRegion, RailState, RequestHandle, Transport } from '../../../transport/index.ts';
import { PartTable } from '../../../transport/part-table.ts';
import {
  type BackendChannel,
  type BackendLink,
  type BackendRegion,
  type BackendRemoteRegion,
  type BackendTransfer,
  type ChannelOptions,
  type LinkState,
  type MemoryKind,
  own,
  type PlannedTransfer,
  type PutPlace,
  type SharedParts,
  type TransferOperation,
  type TransferState,
  untilDone,
} from '../../backend.ts';
import { MessageRing } from '../../message-ring.ts';

// The mailbox of a link: a counter and a ring on each side, through which messages travel behind their data.

/** Most bytes of messages that the peer has not taken. A power of two. */
export const MAILBOX_RING_BYTES = 256 * 1024;

/**
 * At the receiver, `counter` is the bytes that have arrived in its ring: the sender's engine adds to it by signals, behind
 * the bytes. At the sender, `counter` is the bytes that the receiver has taken: it adds to it by signals, and only then
 * may the sender's count of reserved bytes go on; messages wait in the sender's ring until they are sent. The low 32 bits
 * of a counter are enough: differences are below 2^31. A stale look shows fewer bytes and costs time only.
 */
export const mailboxHead = defineLayout('AgentMailbox', { counter: 'u64', pad: { of: 'u64', count: 7 } }, 64);

/** What begins a message in the ring; it and its bytes are padded to a multiple of 8. May wrap at the ring's end. */
export const mailboxRecord = defineLayout('AgentMessage', { bytes: 'u32', reserved: 'u32' }, 8);

/** Flows of the transport: data of transfers, messages, then one per channel. */
const DATA_FLOW = 0;
const MESSAGE_FLOW = 65_534;
const FIRST_CHANNEL_FLOW = 1;
const CHANNEL_FLOWS = 60_000;

interface LinkParts {
  readonly transport: Transport;
  readonly connection: Connection;
  readonly messages: OutMessages;
  readonly messageRegion: MemoryRegion;
  /** The peer's inbox. */
  readonly inbox: { readonly region: number; readonly key: number };
  readonly onClose: (link: MultipathLink) => void;
}

export class MultipathLink implements BackendLink {
  readonly transport: Transport;
  readonly connection: Connection;
  readonly messages: OutMessages;
  readonly #messageRegion: MemoryRegion;
  readonly #line: number;
  readonly #onClose: (link: MultipathLink) => void;
  /** Transfers with something under way. */
  readonly #busy: MultipathTransfer[] = [];
  readonly #channels = new Set<MultipathChannel>();
  /** Transfers of nothing, which carry messages; used again. */
  readonly #carriers: MultipathTransfer[] = [];
  readonly #emptyPlan: number;
  #nextFlow = 0;

  static async open(parts: LinkParts): Promise<MultipathLink> {
    const { connection, messageRegion, inbox } = parts;
    const line = await connection.transfers.openLine({
      flow: MESSAGE_FLOW,
      region: messageRegion.number,
      remoteRegion: inbox.region,
      remoteKey: inbox.key,
      counter: mailboxHead.offset.counter,
      ring: mailboxHead.size,
      ringBytes: MAILBOX_RING_BYTES,
    });
    const nothing = {
      operation: 'write',
      flow: DATA_FLOW,
      parts: PartTable.ofCount(0).buffer,
      isBySelection: false,
      regions: [],
      remoteRegions: [],
      remoteKeys: [],
      line,
    } as const;
    return new MultipathLink(parts, line, await connection.transfers.prepare(nothing));
  }

  private constructor(parts: LinkParts, line: number, emptyPlan: number) {
    this.transport = parts.transport;
    this.connection = parts.connection;
    this.messages = parts.messages;
    this.#messageRegion = parts.messageRegion;
    this.#onClose = parts.onClose;
    this.#line = line;
    this.#emptyPlan = emptyPlan;
  }

  get state(): LinkState {
    const { error } = this.connection;
    if (error === undefined) return 'open';
    return error.code === 'WL_CLOSED' ? 'closed' : 'dead';
  }

  get error(): WeftlineError | undefined {
    return this.connection.error;
  }

  importRegion(
    info: Uint8Array,
    { bytes }: { readonly kind: MemoryKind; readonly bytes: number },
  ): MultipathRemoteRegion {
    return new MultipathRemoteRegion(info, bytes);
  }

  async prepare(
    operation: TransferOperation,
    { locals, remotes, parts, isBySelection }: PlannedTransfer<BackendRegion, BackendRemoteRegion>,
  ): Promise<MultipathTransfer> {
    const regions = remotes.map((region) => own(MultipathRemoteRegion, region));
    const plan = {
      operation,
      flow: DATA_FLOW,
      parts: parts.buffer,
      isBySelection,
      regions: locals.map((region) => own(MultipathRegion, region).region.number),
      remoteRegions: regions.map(({ remoteRegion }) => remoteRegion),
      remoteKeys: regions.map(({ remoteKey }) => remoteKey),
      line: this.#line,
    };
    return new MultipathTransfer(this, await this.connection.transfers.prepare(plan));
  }

  notify(message: Uint8Array): void {
    const carrier = this.#carriers.pop() ?? new MultipathTransfer(this, this.#emptyPlan, this.#carriers);
    carrier.post(message);
  }

  get rails(): readonly RailState[] {
    return this.connection.rails;
  }

  get lanes(): number {
    return this.connection.lanes;
  }

  openChannel({ lane }: ChannelOptions = {}): MultipathChannel {
    const channel = new MultipathChannel(this.connection, this.#takeFlow(lane), () => this.#channels.delete(channel));
    this.#channels.add(channel);
    return channel;
  }

  async close(): Promise<void> {
    this.#onClose(this);
    await this.connection.close();
    this.poll();
    this.#abandon(this.connection.error);
    await this.#messageRegion.close();
  }

  /** One that is at home on that lane, if it matters. */
  #takeFlow(lane: number | undefined): number {
    for (;;) {
      const flow = FIRST_CHANNEL_FLOW + (this.#nextFlow++ % CHANNEL_FLOWS);
      if (lane === undefined || this.connection.homeLane(flow) === lane % this.lanes) return flow;
    }
  }

  /** A transfer has been posted. */
  watch(transfer: MultipathTransfer): void {
    this.#busy.push(transfer);
  }

  /** Hot path. True if something ended. */
  poll(): boolean {
    const { failure } = this.transport;
    if (failure !== undefined) return this.#abandon(failure);
    const busy = this.#busy;
    let kept = 0;
    for (let at = 0; at < busy.length; at++) {
      const transfer = busy[at] as MultipathTransfer;
      if (!transfer.look()) busy[kept++] = transfer;
    }
    let hasNews = kept < busy.length;
    busy.length = kept;
    for (const channel of this.#channels) if (channel.look()) hasNews = true;
    return hasNews;
  }

  /** An engine that is gone says nothing any more of what is under way. True if something was. */
  #abandon(error: WeftlineError | undefined): boolean {
    const transfers = this.#busy.splice(0);
    const channels = [...this.#channels];
    this.#channels.clear();
    for (const transfer of transfers) transfer.end(error);
    for (const channel of channels) channel.end(error);
    return transfers.length + channels.length > 0;
  }
}

// A transfer that the transport's engine knows: posted with one command, looked at until it has ended.

const NO_MESSAGE = { offset: 0, bytes: 0 };
const NONE = -1;

class MultipathTransfer implements BackendTransfer {
  state: TransferState = 'idle';
  error: WeftlineError | undefined;
  readonly #link: MultipathLink;
  readonly #plan: number;
  /** The list that it goes back to when it has ended; the plan is then another's to release. */
  readonly #pool: MultipathTransfer[] | undefined;
  #request: RequestHandle = NONE;
  #message = NONE;
  #messageBytes = 0;
  #isReleased = false;
  readonly #onEnd: (() => void)[] = [];

  constructor(link: MultipathLink, plan: number, pool?: MultipathTransfer[]) {
    this.#link = link;
    this.#plan = plan;
    this.#pool = pool;
  }

  post(message?: Uint8Array): void {
    if (this.#isReleased) throw new WeftlineError('WL_CLOSED', 'The transfer was closed');
    const { connection, messages } = this.#link;
    if (connection.error !== undefined) throw connection.error;
    this.#message = message === undefined ? NONE : messages.reserve(message);
    this.#messageBytes = message === undefined ? 0 : messages.message.bytes;
    try {
      this.#request = connection.transfers.post(this.#plan, message === undefined ? NO_MESSAGE : messages.message);
    } catch (error) {
      this.#releaseMessage(false);
      throw error;
    }
    this.state = 'pending';
    this.error = undefined;
    this.#link.watch(this);
  }

  cancel(): void {
    if (this.state === 'pending' && this.#link.error === undefined) this.#link.connection.cancel(this.#request);
  }

  async release(): Promise<void> {
    if (this.#isReleased) return;
    this.#isReleased = true;
    if (this.state === 'pending') {
      const ended = new Promise<void>((resolve) => this.#onEnd.push(resolve));
      this.cancel();
      await ended;
    }
    if (this.#link.error === undefined) await this.#link.connection.transfers.release(this.#plan);
  }

  /** Hot path. True if it has ended. */
  look(): boolean {
    const { transport } = this.#link;
    if (transport.state(this.#request) === 'pending') return false;
    try {
      transport.take(this.#request);
      this.end(undefined);
    } catch (error) {
      this.end(this.#link.error ?? asWeftlineError(error));
    }
    return true;
  }

  /** Ends the post, with an error or without. */
  end(error: WeftlineError | undefined): void {
    this.error = error;
    this.state = error === undefined ? 'done' : 'failed';
    this.#request = NONE;
    this.#releaseMessage(error === undefined);
    this.#pool?.push(this);
    for (const resolve of this.#onEnd.splice(0)) resolve();
  }

  #releaseMessage(wasSent: boolean): void {
    if (this.#message === NONE) return;
    this.#link.messages.release(this.#message, wasSent, this.#messageBytes);
    this.#message = NONE;
  }
}

// The sender's side of a mailbox: messages wait here until their data has arrived. Hot path: no allocation.

/** Messages that may wait; more than requests of a transport. A power of two. */
const MAX_MESSAGES = 8192;

export class OutMessages {
  /** Registered by the link, so that the peer can count what it has taken. */
  readonly bytes: Uint8Array = new Uint8Array(new SharedArrayBuffer(mailboxHead.size + MAILBOX_RING_BYTES));
  /** What `reserve` found, to post with: offset in `bytes`, and bytes of the record. */
  readonly message = { offset: 0, bytes: 0 };
  readonly #ring: MessageRing;
  readonly #taken = new Int32Array(this.bytes.buffer, mailboxHead.offset.counter, 1);
  readonly #words = new Uint32Array(this.bytes.buffer);
  /** Bytes of the peer's ring that were promised to messages so far; the count wraps. */
  #promised = 0;

  constructor(peer: string) {
    this.#ring = new MessageRing({ bytes: MAILBOX_RING_BYTES, most: MAX_MESSAGES, peer });
  }

  /** Copies a message. Returns its number; see `message`. Fails with WL_BUSY, leaving everything as it was. */
  reserve(text: Uint8Array): number {
    const { message } = this;
    const bytes = alignUp(mailboxRecord.size + text.length, 8);
    const untaken = (this.#promised - Atomics.load(this.#taken, 0)) | 0;
    const number = this.#ring.take(text.length, bytes, untaken + bytes <= MAILBOX_RING_BYTES);
    this.#promised = (this.#promised + bytes) | 0;
    message.offset = mailboxHead.size + this.#ring.offsetOf(number);
    message.bytes = bytes;
    this.#words[message.offset / 4] = text.length;
    this.bytes.set(text, message.offset + mailboxRecord.size);
    return number;
  }

  /** The transfer has ended, and its message's place is free; one that was not sent takes nothing of the peer's ring. */
  release(number: number, wasSent: boolean, bytes: number): void {
    if (!wasSent) this.#promised = (this.#promised - bytes) | 0;
    this.#ring.free(number);
  }
}

// Puts and signals on a flow of their own, in order: the carrier's channel for the agent's memory.

/** How metadata of an agent names a region that its peers reach over the transport. */
const multipathRegionInfo = defineLayout('MultipathRegionInfo', { region: 'u32', key: 'u32' }, 4);

class MultipathChannel extends Channel implements BackendChannel {
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
  readonly release = untilDone(() => this.region.close());

  constructor(region: MemoryRegion) {
    this.region = region;
    this.info = new Uint8Array(multipathRegionInfo.size);
    const block = new Block(multipathRegionInfo, this.info.buffer, 0);
    block.set('region', region.remote.remoteRegion);
    block.set('key', region.remote.remoteKey);
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
