// The way to one peer over RDMA: its queue of operations, and the connections that carry it, one after the other.
import { completionStatus } from '../../../abi/verbs-words.ts';
import { asWeftlineError, WeftlineError } from '../../../core/errors.ts';
import { log } from '../../../core/log.ts';
import type { ControlChannel } from '../../../meeting/control-channel.ts';
import type { CompletionQueue } from '../../../native/verbs/completion-queue.ts';
import type {
  BackendLink,
  BackendRegion,
  BackendRemoteRegion,
  LinkState,
  PlannedTransfer,
  TransferOperation,
} from '../../backend.ts';
import type { CompletionTaker } from './completion-pool.ts';
import { Mailbox } from './mailbox.ts';
import type { OperationOwner, RequestParts } from './operation.ts';
import { OperationQueue, OPERATIONS, SEND_REQUESTS } from './operation-queue.ts';
import { OutMessages } from './out-messages.ts';
import { describePort, QueuePairEnd } from './queue-pair-end.ts';
import { VerbsChannel } from './verbs-channel.ts';
import type { VerbsDevice } from './verbs-device.ts';
import type { MeetingEnd } from './verbs-meeting.ts';
import { own, VerbsRemoteRegion, withdrawnError } from './verbs-region.ts';
import { type OperationLink, VerbsTransfer } from './verbs-transfer.ts';

/** Both sides have met. */
export interface MetPeer {
  readonly channel: ControlChannel;
  readonly end: MeetingEnd;
}

export interface LinkOptions {
  readonly peer: string;
  readonly device: VerbsDevice;
  /** Tells the peer of this side's end, and learns of its. Fails when the link is left. */
  readonly meet: (end: MeetingEnd, left: AbortSignal) => Promise<MetPeer>;
  readonly onEnd: (link: VerbsLink) => void;
  /** The agent may sleep, and there is news. */
  readonly ring: () => void;
  /** Looks at the device until the condition holds. Fails with WL_TIMEOUT. */
  readonly until: (isSo: () => boolean) => Promise<boolean>;
}

interface Failure {
  readonly status: number;
  readonly sequence: number;
  readonly tag: number;
  readonly error: WeftlineError;
}

const nothing: RequestParts = {
  count: 0,
  localAddress: new Float64Array(0),
  remoteAddress: new Float64Array(0),
  bytes: new Float64Array(0),
  localKey: new Uint32Array(0),
  remoteKey: new Uint32Array(0),
  remote: new Uint32Array(0),
  remotes: [],
};
/** A message of notify() ends as its connection does. */
const nobody: OperationOwner = { wants: () => true, ended: () => {} };

export class VerbsLink implements BackendLink, CompletionTaker, OperationLink {
  readonly peer: string;
  readonly queue: OperationQueue;
  readonly messages: OutMessages;
  state: LinkState = 'open';
  error: WeftlineError | undefined;
  readonly #options: LinkOptions;
  readonly #mailbox: Mailbox;
  readonly #channels = new Set<VerbsChannel>();
  #end: QueuePairEnd | undefined;
  #channel: ControlChannel | undefined;
  /** Of both ports, for errors. */
  #route = '';
  /** The connection has carried something. */
  #hasCarried = false;
  /** The first request of the connection that failed; until it was looked at. */
  #failure: Failure | undefined;
  readonly #left = new AbortController();
  #reconnecting: Promise<void> | undefined;
  #closing: Promise<void> | undefined;

  /** Fails as `Backend.connect` does. */
  static async open(options: LinkOptions): Promise<VerbsLink> {
    const link = new VerbsLink(options);
    try {
      await link.#connect();
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
    this.#mailbox = new Mailbox(device.domain, OPERATIONS);
    this.messages = new OutMessages(this.#mailbox, peer);
    const { chunkBytes } = device;
    this.queue = new OperationQueue({ mailbox: this.#mailbox, messages: this.messages, chunkBytes, peer });
  }

  importRegion(info: Uint8Array, { bytes }: { readonly bytes: number }): VerbsRemoteRegion {
    return new VerbsRemoteRegion(info, bytes, this.peer);
  }

  isWithdrawn(region: BackendRemoteRegion): boolean {
    return own(VerbsRemoteRegion, region).isWithdrawn;
  }

  async prepare(
    operation: TransferOperation,
    plan: PlannedTransfer<BackendRegion, BackendRemoteRegion>,
  ): Promise<VerbsTransfer> {
    if (this.error !== undefined) throw this.error;
    return new VerbsTransfer(this, operation, plan);
  }

  notify(message: Uint8Array): void {
    if (this.error !== undefined) throw this.error;
    const { queue } = this;
    if (queue.isFull) throw new WeftlineError('WL_BUSY', 'Too many operations are under way: wait for earlier ones');
    queue.enterTransfer(nobody, 0, nothing, false, this.messages.reserve(message));
    this.flush();
  }

  openChannel(): VerbsChannel {
    if (this.error !== undefined) throw this.error;
    const hasAtomics = this.#options.device.context.attributes.atomicCap !== 'none';
    const channel: VerbsChannel = new VerbsChannel(this, {
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

  complete(queue: CompletionQueue, index: number): void {
    if (this.#failure !== undefined) return;
    if (queue.isSuccess(index)) {
      this.#hasCarried = true;
      this.queue.done(queue.sequenceAt(index));
    } else {
      this.#failure = {
        status: queue.statusAt(index),
        sequence: queue.sequenceAt(index),
        tag: queue.tagAt(index),
        error: queue.errorAt(index, `A request to ${this.peer} (${this.#route})`),
      };
    }
  }

  /** Hot path, after a look at the completions. Goes on with what waits for room. */
  look(): void {
    const failure = this.#failure;
    if (failure === undefined) {
      if (!this.queue.isEmpty || this.queue.owesWake) this.#tryFlush();
      return;
    }
    if (this.#end === undefined) return;
    const { status, error } = failure;
    const isUnanswered = status === completionStatus.retriesExceeded;
    // A request of no operation, and one of a way that has never worked, would fail again and again.
    const isHopeless = this.queue.isEmpty || (isUnanswered && !this.#hasCarried);
    if (isHopeless || status === completionStatus.flushed) this.#lost(error.message);
    else if (isUnanswered) this.#unanswered(error);
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

  /** The peer's device has refused a request. What was posted behind it goes by another connection. */
  #refused({ status, error, sequence, tag }: Failure): void {
    const isAccess = status === completionStatus.remoteAccess;
    const region = this.queue.fail(sequence, tag, isAccess ? withdrawnError(this.peer) : error);
    if (isAccess && region !== undefined) region.isWithdrawn = true;
    log('agent', 'info', `${error.message}; connecting to ${this.peer} anew`);
    this.#leave();
    this.#reconnecting = this.#reconnect();
  }

  /**
   * A refusal that was lost on its way looks like this too, because a device that has refused a request is silent from then
   * on. What the peer has carried out is unknown, so nothing of it goes again.
   */
  #unanswered({ message }: WeftlineError): void {
    const why = `${message}; it may have been carried out, or refused because ${this.peer} has taken back the memory`;
    log('agent', 'info', `${message}; connecting to ${this.peer} anew`);
    // ORDER: no device touches the memory of what then ends.
    this.#leave();
    this.queue.failStarted(new WeftlineError('WL_PEER_FAILED', why, { details: { peer: this.peer } }));
    this.#reconnecting = this.#reconnect();
  }

  #tryFlush(): void {
    try {
      this.queue.flush();
    } catch (error) {
      // The device takes nothing more from this queue pair.
      this.#lost(asWeftlineError(error).message);
    }
  }

  async #reconnect(): Promise<void> {
    try {
      await this.#connect();
    } catch (error) {
      this.#lost(`connecting anew failed: ${asWeftlineError(error).message}`);
    }
    this.#options.ring();
  }

  async #connect(): Promise<void> {
    const { device, meet } = this.#options;
    // The peer writes credits to this side, nothing else.
    const options = { maxSends: SEND_REQUESTS, maxReceives: 1, access: { remoteWrite: true } };
    const end = new QueuePairEnd(device, options);
    try {
      const { address, region } = this.#mailbox;
      const { channel, end: remote } = await meet(
        { ...end.address, mailbox: { address, key: region.remoteKey } },
        this.#left.signal,
      );
      if (this.error !== undefined) {
        channel.close();
        throw this.error;
      }
      try {
        end.connect(remote);
      } catch (error) {
        channel.refuse(error);
        throw error;
      }
      this.#adopt(end, channel, remote);
    } catch (error) {
      end.close();
      throw error;
    }
  }

  #adopt(end: QueuePairEnd, channel: ControlChannel, remote: MeetingEnd): void {
    this.#end = end;
    this.#channel = channel;
    this.#failure = undefined;
    this.#hasCarried = false;
    this.#route = `${describePort(end.address)} to ${describePort(remote)}`;
    end.takeCompletions(this);
    channel.unref();
    channel.watch((farewell) => {
      if (channel === this.#channel) this.#peerLeft(farewell);
    });
    this.queue.resume(end.queuePair.sends, remote.mailbox);
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
