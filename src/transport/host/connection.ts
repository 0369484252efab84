// A connection as the user sees it: requests are posted here, their ends are taken from the transport.
import { engineCommandKinds } from '../../abi/transport-command.ts';
import { decodeError, type EncodedError, encodeError, WeftlineError } from '../../core/errors.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import type { HostStatistics } from './host-calls.ts';
import type { EngineLink } from './engine-link.ts';
import type { MemoryRegion } from './memory-region.ts';
import type { LinePlan, TransferMessage, TransferPlan } from './prepared-transfers.ts';
import type { RequestHandle, RequestSlots } from './request-slots.ts';

/** Part of a region of this side; all of it by default. */
export interface LocalPart {
  readonly region: MemoryRegion;
  readonly offset?: number;
  readonly bytes?: number;
  /** Messages of a flow meet receives of the same flow in the order of posting; 0 by default, at most 65535. */
  readonly flow?: number;
}

/** Where a one-sided operation goes: `region.remote` of the peer, and an offset in it. */
export interface RemotePart {
  readonly remoteRegion: number;
  readonly remoteKey: number;
  /** 0 by default. */
  readonly remoteOffset?: number;
}

/** Which counter of the peer a signal adds to, and how much. */
export interface SignalPart extends RemotePart {
  readonly flow?: number;
  /** Added to the 64-bit cell at `remoteOffset`, a multiple of 8. */
  readonly add: number;
}

export interface ConnectionParts {
  readonly link: EngineLink;
  readonly slots: RequestSlots;
  readonly channel: ControlChannel;
  readonly number: number;
  readonly peerName: string;
  readonly paths: number;
  readonly segmentBytes: number;
  readonly cutsSends: boolean;
  readonly hello: unknown;
  readonly onClose: (connection: Connection) => void;
}

/** After its goodbye, how long a peer's last acknowledgements may still come in. */
const FAREWELL_MS = 100;

/**
 * Posting never waits: it returns a request, whose end `transport.wait` takes. Requests fail with WL_PEER_LOST when the
 * peer's process ended or fell silent, with WL_CLOSED when either side closed, with WL_INVALID_ARGUMENT for ranges outside
 * their region, with WL_UNAUTHORIZED for a wrong key.
 */
export class Connection implements AsyncDisposable {
  readonly peerName: string;
  /** UDP sockets on each side. */
  readonly paths: number;
  /** Bytes of a full packet. */
  readonly segmentBytes: number;
  /** True if the kernel cuts large sends into packets. */
  readonly cutsSends: boolean;
  /** What the application of the peer said when they met. */
  readonly hello: unknown;
  /** Numeric addresses. */
  readonly localHost: string;
  readonly peerHost: string;
  readonly #link: EngineLink;
  readonly #slots: RequestSlots;
  readonly #channel: ControlChannel;
  readonly #number: number;
  readonly #onClose: (connection: Connection) => void;
  #error: WeftlineError | undefined;
  #ending: Promise<void> | undefined;

  /** @internal */
  constructor({ link, slots, channel, number, onClose, ...facts }: ConnectionParts) {
    this.peerName = facts.peerName;
    this.paths = facts.paths;
    this.segmentBytes = facts.segmentBytes;
    this.cutsSends = facts.cutsSends;
    this.hello = facts.hello;
    this.localHost = channel.localAddress;
    this.peerHost = channel.remoteAddress;
    this.#link = link;
    this.#slots = slots;
    this.#channel = channel;
    this.#number = number;
    this.#onClose = onClose;
    channel.watch((farewell) => {
      if (farewell) setTimeout(() => void this.end(this.#closedByPeer()), FAREWELL_MS).unref();
      else void this.end(this.#lost());
    });
    channel.unref();
  }

  /** The engine's number of it. */
  get number(): number {
    return this.#number;
  }

  /** Why the connection is over; undefined while it is not. */
  get error(): WeftlineError | undefined {
    return this.#error;
  }

  /** Offers memory for the next message of the flow. The end tells how many bytes came. */
  receive(part: LocalPart): RequestHandle {
    return this.#postLocal(engineCommandKinds.receive, part);
  }

  /** Sends a message to the next receive of the flow; ends when every byte has arrived there. */
  send(part: LocalPart): RequestHandle {
    return this.#postLocal(engineCommandKinds.send, part);
  }

  /** Writes into a region of the peer; ends when every byte lies there. */
  write(part: LocalPart & RemotePart): RequestHandle {
    this.#aim(part);
    return this.#postLocal(engineCommandKinds.write, part);
  }

  /** Reads from a region of the peer; ends when every byte lies here. */
  read(part: LocalPart & RemotePart): RequestHandle {
    this.#aim(part);
    return this.#postLocal(engineCommandKinds.read, part);
  }

  /** Adds to a counter of the peer, after the data of all earlier writes of the flow. */
  signal(part: SignalPart): RequestHandle {
    this.#aim(part);
    this.#slots.command.add = part.add;
    return this.#post(engineCommandKinds.signal, part.flow);
  }

  /** Ends when all writes and signals posted before on the flow have. */
  flush(flow?: number): RequestHandle {
    return this.#post(engineCommandKinds.flush, flow);
  }

  /** @internal Describes a transfer of many ranges to the engine; `postTransfer` takes the number. */
  prepareTransfer(plan: Omit<TransferPlan, 'connection'>): Promise<number> {
    return this.#link.call('prepare', { ...plan, connection: this.#number });
  }

  /** @internal Where messages of transfers go. Its number goes into their plans; it ends with the connection. */
  openLine(plan: Omit<LinePlan, 'connection'>): Promise<number> {
    return this.#link.call('openLine', { ...plan, connection: this.#number });
  }

  /**
   * Posts all its ranges, then its message; ends when both have arrived. Failing ranges hold the message back.
   * @internal
   */
  postTransfer(transfer: number, { offset, bytes }: TransferMessage): RequestHandle {
    const { command } = this.#slots;
    command.region = transfer;
    command.offset = offset;
    command.bytes = bytes;
    return this.#post(engineCommandKinds.transfer);
  }

  /** @internal None of its posts may be pending. */
  async releaseTransfer(transfer: number): Promise<void> {
    await this.#link.call('unprepare', transfer);
  }

  /** Withdraws a pending request, which then fails with WL_CLOSED here and there, unless it ends first. */
  cancel(request: RequestHandle): void {
    this.#slots.cancel(request, this.#number);
  }

  /** What this connection and its engine have counted. */
  statistics(): Promise<HostStatistics> {
    return this.#link.call('statistics', this.#number);
  }

  /** Pending requests fail with WL_CLOSED, here and at the peer. Idempotent. */
  close(): Promise<void> {
    this.#error ??= new WeftlineError('WL_CLOSED', `The connection to ${this.peerName} was closed`);
    this.#ending ??= this.#end(this.#error, true);
    return this.#ending;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** @internal Ends the connection for a reason, which its pending requests carry. */
  end(error: WeftlineError): Promise<void> {
    this.#error ??= error;
    this.#ending ??= this.#end(this.#error, false);
    return this.#ending;
  }

  /** @internal What the engine says of its end. */
  endWith(error: EncodedError): Promise<void> {
    return this.end(decodeError(error));
  }

  async #end(error: WeftlineError, farewell: boolean): Promise<void> {
    this.#onClose(this);
    // An engine that is gone has ended it already.
    if (this.#link.failure === undefined)
      await this.#link.call('end', { connection: this.#number, error: encodeError(error) }).catch(() => {});
    if (farewell) this.#channel.close();
    else this.#channel.hangUp();
  }

  #postLocal(kind: number, { region, offset = 0, bytes, flow }: LocalPart): RequestHandle {
    const { command } = this.#slots;
    command.region = region.number;
    command.offset = offset;
    command.bytes = bytes ?? region.bytes.length - offset;
    return this.#post(kind, flow);
  }

  #post(kind: number, flow = 0): RequestHandle {
    if (this.#error !== undefined) throw this.#error;
    const { command } = this.#slots;
    command.kind = kind;
    command.connection = this.#number;
    command.flow = flow;
    return this.#slots.post(this.peerName);
  }

  #aim({ remoteRegion, remoteKey, remoteOffset = 0 }: RemotePart): void {
    const { command } = this.#slots;
    command.remoteRegion = remoteRegion;
    command.remoteKey = remoteKey;
    command.remoteOffset = remoteOffset;
  }

  #lost(): WeftlineError {
    return new WeftlineError('WL_PEER_LOST', `${this.peerName} is gone: its process ended or its connection broke`, {
      details: { peer: this.peerName },
    });
  }

  #closedByPeer(): WeftlineError {
    return new WeftlineError('WL_CLOSED', `${this.peerName} closed the connection`, {
      details: { peer: this.peerName },
    });
  }
}
