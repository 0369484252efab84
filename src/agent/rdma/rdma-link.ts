// The way to one peer over RDMA: its queue of operations, and the connections that carry it, one after the other.
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import { log } from '../../core/log.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import {
  type BackendLink,
  type BackendRegion,
  type BackendRemoteRegion,
  type LinkState,
  type PlannedTransfer,
  type TransferOperation,
  own,
} from '../backend.ts';
import { protocolError } from '../../meeting/frames.ts';
import { PartTable } from '../../transport/part-table.ts';
import { OPERATIONS, OperationQueue, SEND_REQUESTS } from './operation-queue.ts';
import type { EndFailure, EndUser, RdmaDevice, RdmaEnd, RemoteKeys } from './rdma-device.ts';
import type { MeetingEnd, MetPeer, RdmaCaller } from './rdma-meeting.ts';
import { Mailbox, OutMessages } from './rdma-messages.ts';
import { type OperationLink, RdmaChannel, RdmaTransfer } from './rdma-posts.ts';
import { RdmaRemoteRegion, withdrawnError } from './rdma-region.ts';
import { nobody, type RequestParts } from './request-writer.ts';

export interface LinkOptions {
  readonly peer: string;
  readonly device: RdmaDevice;
  /** Tells the peer of this side's end, and learns of its. Fails when the link is left. */
  readonly meet: (said: Omit<RdmaCaller, 'name'>, left: AbortSignal) => Promise<MetPeer>;
  readonly onEnd: (link: RdmaLink) => void;
  /** The agent may sleep, and there is news. */
  readonly ring: () => void;
  /** Looks at the device until the condition holds. Fails with WL_TIMEOUT. */
  readonly until: (isSo: () => boolean) => Promise<boolean>;
}

const nothing: RequestParts = { table: PartTable.ofCount(0), locals: [], remotes: [], flushed: [] };
/** How often a peer that takes no messages is sent a wake. */
const LOOK_AFTER_MS = 1000;

export class RdmaLink implements BackendLink, EndUser, OperationLink {
  readonly peer: string;
  readonly queue: OperationQueue;
  state: LinkState = 'open';
  error: WeftlineError | undefined;
  readonly #options: LinkOptions;
  readonly #mailbox: Mailbox;
  readonly #messages: OutMessages;
  readonly #keys: RemoteKeys;
  readonly #channels = new Set<RdmaChannel>();
  /** The number of the peer's inbox among the keys. */
  #inboxKey: number | undefined;
  /** Keys of regions that were released while operations were under way. */
  readonly #oldKeys: number[] = [];
  #end: RdmaEnd | undefined;
  #channel: ControlChannel | undefined;
  /** What the peer calls this side's connection. */
  #guest: string | undefined;
  /** This connection has carried something. */
  #hasCarried = false;
  /** Some connection of the link has carried something; the last one that broke got no answer before it had. */
  #isProven = false;
  #wasInVain = false;
  /** The first request of the connection that failed; until it was looked at. */
  #failure: EndFailure | undefined;
  /** The time before which it does not look again. */
  #lookAgainAt = 0;
  readonly #left = new AbortController();
  #reconnecting: Promise<void> | undefined;
  #closing: Promise<void> | undefined;

  /** Fails as `Backend.connect` does. */
  static async open(options: LinkOptions): Promise<RdmaLink> {
    const link = new RdmaLink(options);
    try {
      await link.#connect(undefined);
      return link;
    } catch (error) {
      link.#finish('closed', asWeftlineError(error));
      throw error;
    }
  }

  private constructor(options: LinkOptions) {
    const { peer, device } = options;
    this.peer = peer;
    this.#options = options;
    this.#keys = device.openKeys();
    this.#mailbox = new Mailbox(device, OPERATIONS);
    const messages = new OutMessages(this.#mailbox, peer);
    this.#messages = messages;
    const { chunkBytes } = device;
    this.queue = new OperationQueue({ mailbox: this.#mailbox, messages, chunkBytes, peer });
  }

  importRegion(info: Uint8Array, { bytes }: { readonly bytes: number }): RdmaRemoteRegion {
    return new RdmaRemoteRegion(info, { bytes, peer: this.peer, keys: this.#keys });
  }

  releaseRegion(region: BackendRemoteRegion): void {
    const remote = own(RdmaRemoteRegion, region);
    if (remote.isForgotten) return;
    remote.isForgotten = true;
    remote.isWithdrawn = true;
    this.#oldKeys.push(remote.key);
    this.#dropKeys();
  }

  isWithdrawn(region: BackendRemoteRegion): boolean {
    return own(RdmaRemoteRegion, region).isWithdrawn;
  }

  async prepare(
    operation: TransferOperation,
    plan: PlannedTransfer<BackendRegion, BackendRemoteRegion>,
  ): Promise<RdmaTransfer> {
    if (this.error !== undefined) throw this.error;
    return new RdmaTransfer(this, operation, plan);
  }

  notify(message: Uint8Array): void {
    if (this.error !== undefined) throw this.error;
    const { queue } = this;
    queue.requireRoom();
    queue.enterTransfer(nobody, nothing, false, this.reserve(message));
    this.flush();
  }

  reserve(message: Uint8Array): number {
    try {
      return this.#messages.reserve(message);
    } catch (error) {
      this.#lookAfter();
      throw error;
    }
  }

  openChannel(): RdmaChannel {
    if (this.error !== undefined) throw this.error;
    const { hasAtomics } = this.#options.device;
    const channel: RdmaChannel = new RdmaChannel(this, {
      hasAtomics,
      onClose: () => this.#channels.delete(channel),
    });
    this.#channels.add(channel);
    return channel;
  }

  /** Hot path. Hands over what was entered. */
  flush(): void {
    this.#tryFlush();
    if (this.error !== undefined) throw this.error;
  }

  hold(): void {
    try {
      if (this.queue.advance()) this.#options.ring();
    } catch (error) {
      this.#lost(asWeftlineError(error).message);
    }
    if (this.error !== undefined) throw this.error;
  }

  done(sequence: number): void {
    if (this.#failure !== undefined) return;
    this.#hasCarried = true;
    this.#isProven = true;
    this.#wasInVain = false;
    this.queue.done(sequence);
  }

  received(): void {
    // A peer that is called sends nothing.
  }

  failed(failure: EndFailure): void {
    this.#failure ??= failure;
  }

  /** Hot path, after a look at the completions. Goes on with what waits for room. */
  look(): void {
    const failure = this.#failure;
    if (failure === undefined) {
      if (!this.queue.isEmpty || this.queue.owesWake) this.#tryFlush();
      return;
    }
    if (this.#end === undefined) return;
    const { kind, error } = failure;
    const isUnknown = kind === 'unanswered' || kind === 'unclear';
    const isInVain = kind === 'unanswered' && !this.#hasCarried;
    // These would fail again and again: what belongs to no operation, a way that never worked, one without answer twice.
    const isHopeless = this.queue.isEmpty || (isInVain && (!this.#isProven || this.#wasInVain));
    this.#wasInVain = isInVain;
    if (isHopeless || kind === 'flushed') this.#lost(error.message);
    else if (isUnknown) this.#unknown(failure);
    else this.#refused(failure);
  }

  /** Ends with WL_PEER_LOST: the port of this host is of no use any more. */
  portFailed(why: string): void {
    this.#lost(why);
  }

  async settle(isSo: () => boolean): Promise<void> {
    const { until, peer } = this.#options;
    if (this.error !== undefined || (await until(() => this.error !== undefined || isSo()))) return;
    // The device is not done with it, so its queue pair goes, and then no memory is used.
    this.#lost(`${peer} did not let a request end in time whose memory was released`);
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#finish('closed', new WeftlineError('WL_CLOSED', `The link to ${this.peer} was closed`));
    await this.#reconnecting;
  }

  /**
   * The peer's device has refused a request. What was posted behind it goes by another connection. Its operation ends once the
   * peer has answered: memory of a process that was killed is refused as well.
   */
  #refused(failure: EndFailure): void {
    log('agent', 'info', `${failure.error.message}; connecting to ${this.peer} anew`);
    // ORDER: no device touches the memory of what then ends.
    this.#leave();
    this.queue.halt(failure.sequence);
    this.#reconnecting = this.#reconnect(undefined, failure);
  }

  #refuse({ kind, error, tag }: EndFailure): void {
    const isAccess = kind === 'access';
    const region = this.queue.refuse(tag, isAccess ? withdrawnError(this.peer) : error);
    if (isAccess && region !== undefined) region.isWithdrawn = true;
  }

  /**
   * A refusal that was lost on its way looks like this too, because a device that has refused a request is silent from then
   * on. The peer is asked what it has.
   */
  #unknown({ error: { message } }: EndFailure): void {
    const why = `${message}; it may have been carried out, or refused because ${this.peer} has taken back the memory`;
    const error = new WeftlineError('WL_PEER_FAILED', why, { details: { peer: this.peer } });
    log('agent', 'info', `${message}; connecting to ${this.peer} anew`);
    // ORDER: no device touches the memory of what then ends.
    this.#leave();
    this.queue.stop();
    this.#reconnecting = this.#reconnect(error);
  }

  /**
   * The peer takes no messages. If its end of the connection has broken, its credits do not come through, and who waits for
   * them sends nothing that would fail: so something is sent.
   */
  #lookAfter(): void {
    const now = performance.now();
    if (now < this.#lookAgainAt || !this.queue.isIdle) return;
    this.#lookAgainAt = now + LOOK_AFTER_MS;
    this.queue.wake();
    this.#tryFlush();
  }

  #tryFlush(): void {
    try {
      this.queue.flush();
    } catch (error) {
      // The device takes nothing more from this queue pair.
      this.#lost(asWeftlineError(error).message);
    }
  }

  async #reconnect(failure: WeftlineError | undefined, refused?: EndFailure): Promise<void> {
    try {
      await this.#connect(failure, refused);
    } catch (error) {
      this.#lost(`connecting anew failed: ${asWeftlineError(error).message}`);
    }
    this.#options.ring();
  }

  /** What was started ends with `failure`, or because its memory was taken back; `refused` ends once the peer has answered. */
  async #connect(failure: WeftlineError | undefined, refused?: EndFailure): Promise<void> {
    const { device, meet, until } = this.#options;
    const { peer } = this;
    // The peer writes credits to this side, nothing else.
    const end = device.openEnd({ peer, role: 'caller', maxSends: SEND_REQUESTS, maxReceives: 1 });
    try {
      const { address, region } = this.#mailbox;
      const asked = this.#keys.namesOf(failure === undefined ? [] : this.queue.startedKeys());
      const mailbox = { address, key: Buffer.from(region.remoteKey).toString('hex') };
      const said = { end: { end: end.address, mailbox }, after: this.#guest, asked: [...asked.values()] };
      const { channel, welcome } = await meet(said, this.#left.signal);
      try {
        if (this.error !== undefined) throw this.error;
        if (refused !== undefined) this.#refuse(refused);
        if (failure !== undefined) {
          const isGone = ([, name]: [number, string]): boolean => welcome.gone.includes(name);
          const withdrawn = new Set([...asked].filter(isGone).map(([key]) => key));
          const { arrived } = welcome;
          this.queue.settleStarted({ arrived, withdrawn, error: failure, isRepeated: !this.#hasCarried });
        }
        end.connect(welcome.end.end, this.#keys);
        await until(() => this.error !== undefined || end.isReady);
        if (this.error !== undefined) throw this.error;
        if (!end.isReady) throw new WeftlineError('WL_TIMEOUT', `The connection to ${peer} was not ready in time`);
        this.#adopt(end, channel, welcome.end);
        this.#guest = welcome.guest;
      } catch (error) {
        if (this.error === undefined) channel.refuse(error);
        else channel.close();
        throw error;
      }
    } catch (error) {
      end.close();
      throw error;
    }
  }

  #adopt(end: RdmaEnd, channel: ControlChannel, { mailbox: { address, key } }: MeetingEnd): void {
    const inboxKey = this.#keys.add(Buffer.from(key, 'hex'));
    if (inboxKey === undefined) throw protocolError(`a key of an inbox of ${this.peer} that is none`);
    if (this.#inboxKey !== undefined) this.#keys.remove(this.#inboxKey);
    this.#inboxKey = inboxKey;
    this.#end = end;
    this.#channel = channel;
    this.#failure = undefined;
    this.#hasCarried = false;
    end.use(this);
    channel.unref();
    channel.watch((farewell) => {
      if (channel === this.#channel) this.#peerLeft(farewell);
    });
    this.queue.resume(end.sends, { address, key: inboxKey });
  }

  #peerLeft(farewell: boolean): void {
    if (farewell) this.#finish('closed', new WeftlineError('WL_CLOSED', `${this.peer} closed the link`));
    else this.#lost('its process ended or the network broke');
  }

  #lost(why: string): void {
    const details = { peer: this.peer };
    const error = new WeftlineError('WL_PEER_LOST', `${this.peer} is out of reach: ${why}`, { details });
    if (this.error === undefined) log('agent', 'warn', error.message);
    this.#finish('dead', error);
  }

  /** Drops keys that no request names. */
  #dropKeys(): void {
    if (!this.queue.isEmpty) return;
    for (const key of this.#oldKeys.splice(0)) this.#keys.remove(key);
  }

  /** The device touches no memory for the connection any more. */
  #leave(): void {
    const [end, channel] = [this.#end, this.#channel];
    this.#end = undefined;
    this.#channel = undefined;
    channel?.close();
    end?.close();
  }

  #finish(state: LinkState, error: WeftlineError): void {
    if (this.error !== undefined) return;
    this.error = error;
    this.state = state;
    this.#left.abort(error);
    // ORDER: closing takes in what has completed by now, which counts; nothing touches memory for the rest any more.
    this.#leave();
    this.queue.abandon(error);
    this.#mailbox[Symbol.dispose]();
    this.#options.onEnd(this);
    this.#options.ring();
  }
}
