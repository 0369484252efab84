// The way to one peer over the transport: prepared transfers, messages behind their data, channels.
import { MAILBOX_RING_BYTES, mailboxHead } from '../../../abi/multipath-mailbox.ts';
import { PartTable } from '../../../abi/part-table.ts';
import { asWeftlineError, WeftlineError } from '../../../core/errors.ts';
import type { Connection, MemoryRegion, RailState, RequestHandle, Transport } from '../../../transport/index.ts';
import type { MemoryKind } from '../../agent-memory.ts';
import type {
  BackendLink,
  BackendRegion,
  BackendRemoteRegion,
  BackendTransfer,
  ChannelOptions,
  LinkState,
  PlannedTransfer,
  TransferOperation,
  TransferState,
} from '../../backend.ts';
import type { Welcome } from './agent-words.ts';
import type { MessageRing } from './message-ring.ts';
import { MultipathChannel } from './multipath-channel.ts';
import { MultipathRegion, MultipathRemoteRegion, own } from './multipath-region.ts';

// A transfer that the transport's engine knows: posted with one command, looked at until it has ended.

const NO_MESSAGE = { offset: 0, bytes: 0 };
const NONE = -1;

/** What a transfer needs of its link. */
interface TransferLink {
  readonly transport: Transport;
  readonly connection: Connection;
  readonly messages: MessageRing;
  readonly error: WeftlineError | undefined;
  /** It has been posted. */
  watch(transfer: MultipathTransfer): void;
}

class MultipathTransfer implements BackendTransfer {
  state: TransferState = 'idle';
  error: WeftlineError | undefined;
  readonly #link: TransferLink;
  readonly #plan: number;
  /** Where it goes back to when it has ended; the plan is then another's to release. */
  readonly #pool: MultipathTransfer[] | undefined;
  #request: RequestHandle = NONE;
  #message = NONE;
  #messageBytes = 0;
  #isReleased = false;
  readonly #onEnd: (() => void)[] = [];

  constructor(link: TransferLink, plan: number, pool?: MultipathTransfer[]) {
    this.#link = link;
    this.#plan = plan;
    this.#pool = pool;
  }

  post(message?: Uint8Array): void {
    if (this.#isReleased) throw new WeftlineError('WL_CLOSED', 'The transfer was released');
    const { connection, messages } = this.#link;
    if (connection.error !== undefined) throw connection.error;
    this.#message = message === undefined ? NONE : messages.reserve(message);
    this.#messageBytes = message === undefined ? 0 : messages.message.bytes;
    try {
      this.#request = connection.postTransfer(this.#plan, message === undefined ? NO_MESSAGE : messages.message);
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
    if (this.#link.error === undefined) await this.#link.connection.releaseTransfer(this.#plan);
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

  /** Its post has ended, with an error or without. */
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

/** Flows of the transport: data of transfers, messages, then one per channel. */
const DATA_FLOW = 0;
const MESSAGE_FLOW = 65_534;
const FIRST_CHANNEL_FLOW = 1;
const CHANNEL_FLOWS = 60_000;

interface LinkParts {
  readonly transport: Transport;
  readonly connection: Connection;
  readonly messages: MessageRing;
  readonly messageRegion: MemoryRegion;
  readonly welcome: Welcome;
  readonly onClose: (link: MultipathLink) => void;
}

export class MultipathLink implements BackendLink {
  readonly transport: Transport;
  readonly connection: Connection;
  readonly messages: MessageRing;
  readonly #messageRegion: MemoryRegion;
  readonly #line: number;
  readonly #onClose: (link: MultipathLink) => void;
  /** Those with something under way. */
  readonly #busy: MultipathTransfer[] = [];
  readonly #channels = new Set<MultipathChannel>();
  /** Transfers of nothing, which carry messages; used again. */
  readonly #carriers: MultipathTransfer[] = [];
  readonly #emptyPlan: number;
  #nextFlow = 0;

  static async open(parts: LinkParts): Promise<MultipathLink> {
    const { connection, messageRegion, welcome } = parts;
    const line = await connection.openLine({
      flow: MESSAGE_FLOW,
      region: messageRegion.number,
      remoteRegion: welcome.region,
      remoteKey: welcome.key,
      counter: mailboxHead.offset.counter,
      ring: mailboxHead.size,
      ringBytes: MAILBOX_RING_BYTES,
    });
    const nothing = {
      operation: 'write',
      flow: DATA_FLOW,
      parts: PartTable.ofCount(0).buffer,
      regions: [],
      remoteRegions: [],
      remoteKeys: [],
      line,
    } as const;
    return new MultipathLink(parts, line, await connection.prepareTransfer(nothing));
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
    { locals, remotes, parts }: PlannedTransfer<BackendRegion, BackendRemoteRegion>,
  ): Promise<MultipathTransfer> {
    const regions = remotes.map((region) => own(MultipathRemoteRegion, region));
    const plan = {
      operation,
      flow: DATA_FLOW,
      parts: parts.buffer,
      regions: locals.map((region) => own(MultipathRegion, region).region.number),
      remoteRegions: regions.map(({ remoteRegion }) => remoteRegion),
      remoteKeys: regions.map(({ remoteKey }) => remoteKey),
      line: this.#line,
    };
    return new MultipathTransfer(this, await this.connection.prepareTransfer(plan));
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
    const way = { flow: this.#takeFlow(lane), pinned: lane !== undefined };
    const channel = new MultipathChannel(this, way, () => this.#channels.delete(channel));
    this.#channels.add(channel);
    return channel;
  }

  async close(): Promise<void> {
    this.#onClose(this);
    await this.connection.close();
    this.poll();
    this.#abandon(this.connection.error);
    await this.transport.release(this.#messageRegion);
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
    for (const channel of channels) channel.abandon(error);
    return transfers.length + channels.length > 0;
  }
}
