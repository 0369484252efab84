// The way to one peer over UCX, as the agent has it: regions, transfers, channels, notifications.
import { noticeBytes } from '../../../abi/ucx-message.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { encodeError, invalidArgument, WeftlineError } from '../../../core/errors.ts';
import { emptyCommand, type Command } from '../../../transport/host/shared-requests.ts';
import { protocolError } from '../../../world/frames.ts';
import type {
  BackendLink,
  BackendRemoteRegion,
  BackendTransfer,
  TransferOperation,
  TransferPart,
} from '../../backend.ts';
import { ucxCommands } from './host-calls.ts';
import { LINK_WORDS, linkWords } from './host-link.ts';
import type { JobPart } from './job.ts';
import type { UcxBackend } from './ucx-backend.ts';
import { UcxChannel } from './ucx-channel.ts';
import { decodeUcxRegion } from './ucx-info.ts';
import { UcxRegion } from './ucx-region.ts';
import type { UcxMeeting } from './ucx-meeting.ts';
import { UcxTransfer } from './ucx-transfer.ts';

/** Bytes of messages that the UCX thread has not taken yet. A power of two. */
const RING_BYTES = 256 * 1024;
/** A longer notification had better be data. */
const MAX_MESSAGE_BYTES = 64 * 1024;
/** Of notifications that the peer's agent has not taken. */
const MOST_UNTAKEN_BYTES = 512 * 1024;
/** The UCX thread hears of so much that was taken even if nothing else wakes it. */
const SAID_BYTES = 64 * 1024;

export class UcxRemoteRegion implements BackendRemoteRegion {
  readonly bytes: number;
  readonly number: number;
  readonly key: number;

  constructor(bytes: number, { number, key }: { readonly number: number; readonly key: number }) {
    this.bytes = bytes;
    this.number = number;
    this.key = key;
  }
}

export class UcxLink implements BackendLink {
  readonly peer: string;
  readonly number: number;
  readonly backend: UcxBackend;
  error: WeftlineError | undefined;
  readonly #words = new Int32Array(new SharedArrayBuffer(LINK_WORDS * 4));
  readonly #ring = new NativeBlock(RING_BYTES);
  readonly #channel: UcxMeeting['channel'];
  readonly #channels = new Map<number, UcxChannel>();
  readonly #command: Command = emptyCommand();
  /** Bytes of the ring that were ever written; wraps at 2^32. */
  #ringEnd = 0;
  #untaken = 0;
  #unsaid = 0;
  #closing: Promise<void> | undefined;

  constructor(backend: UcxBackend, number: number, { peer, channel }: UcxMeeting) {
    this.backend = backend;
    this.number = number;
    this.peer = peer;
    this.#channel = channel;
    channel.unref();
    channel.watch((farewell) => this.#peerLeft(farewell));
  }

  get shared(): { readonly words: SharedArrayBuffer; readonly ring: number } {
    return { words: this.#words.buffer, ring: this.#ring.address };
  }

  importRegion(info: Uint8Array, { bytes }: { readonly bytes: number }): UcxRemoteRegion {
    const name = decodeUcxRegion(info);
    if (name === undefined) throw protocolError(`${info.byteLength} bytes about a region of ${this.peer}`);
    return new UcxRemoteRegion(bytes, name);
  }

  async prepare(operation: TransferOperation, parts: readonly TransferPart[]): Promise<BackendTransfer> {
    if (this.error !== undefined) throw this.error;
    const slot = this.backend.slots.pop();
    if (slot === undefined) throw new WeftlineError('WL_CAPACITY', 'Too many prepared transfers: release some first');
    const plan = { slot, link: this.number, operation, parts: parts.map(toJobPart) };
    try {
      await this.backend.engine.call({ name: 'prepare', transfer: plan });
    } catch (error) {
      this.backend.slots.push(slot);
      throw error;
    }
    return new UcxTransfer(this, slot);
  }

  notify(message: Uint8Array): void {
    if (this.error !== undefined) throw this.error;
    const command = this.#command;
    command.kind = ucxCommands.notify;
    command.connection = this.number;
    this.writeMessage(message, command);
    if (!this.backend.engine.requests.put(command)) throw full(this.peer);
    this.sentMessage(command);
    this.backend.engine.nudge();
  }

  openChannel(): UcxChannel {
    const number = this.backend.nextChannel();
    const channel = new UcxChannel(this, number, () => this.#channels.delete(number));
    this.#channels.set(number, channel);
    return channel;
  }

  /** Hot path. Copies a message into the ring and its place into the command. Fails with WL_CAPACITY. */
  writeMessage(message: Uint8Array, command: Command): void {
    const { length } = message;
    if (length > MAX_MESSAGE_BYTES) throw invalidArgument('message', length, `at most ${MAX_MESSAGE_BYTES} bytes`);
    const untaken = (this.#untaken - Atomics.load(this.#words, linkWords.takenByPeer)) | 0;
    // A message lies in one piece: what is left at the ring's end is skipped.
    const place = this.#ringEnd % RING_BYTES;
    const skipped = place + length > RING_BYTES ? RING_BYTES - place : 0;
    const end = (this.#ringEnd + skipped + length) >>> 0;
    const used = (end - Atomics.load(this.#words, linkWords.ringFree)) >>> 0;
    if (untaken + noticeBytes(length) > MOST_UNTAKEN_BYTES || used > RING_BYTES) throw full(this.peer);
    const start = skipped > 0 ? 0 : place;
    this.#ring.bytes.set(message, start);
    command.offset = start;
    command.bytes = length;
    command.add = end;
  }

  /** Hot path. The command with the message is in the ring of commands. */
  sentMessage(command: Command): void {
    this.#untaken = (this.#untaken + noticeBytes(command.bytes)) | 0;
    this.#ringEnd = command.add;
  }

  /** The agent has taken it. */
  tookNotification({ length }: Uint8Array): void {
    Atomics.add(this.#words, linkWords.taken, noticeBytes(length));
    this.#unsaid += noticeBytes(length);
    if (this.#unsaid < SAID_BYTES) return;
    this.#unsaid = 0;
    this.backend.engine.nudge();
  }

  channelFailed(channel: number, error: WeftlineError): void {
    const failed = this.#channels.get(channel);
    if (failed !== undefined) failed.error ??= error;
  }

  ended(error: WeftlineError): void {
    this.error ??= error;
    for (const channel of this.#channels.values()) channel.error ??= this.error;
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const error = new WeftlineError('WL_CLOSED', `The link to ${this.peer} was closed`, {
      details: { peer: this.peer },
    });
    this.ended(error);
    await this.#disconnect(error);
    this.#channel.close();
  }

  async #disconnect(error: WeftlineError): Promise<void> {
    const { engine } = this.backend;
    if (engine.failure === undefined) {
      await engine.call({ name: 'disconnect', link: this.number, error: encodeError(error) });
    }
    this.backend.forgetLink(this.number);
  }

  #peerLeft(farewell: boolean): void {
    if (this.#closing !== undefined) return;
    const how = farewell ? 'it closed the link' : 'its process ended or the network broke';
    const error = new WeftlineError('WL_PEER_LOST', `${this.peer} is gone: ${how}`, { details: { peer: this.peer } });
    // What UCX has said of it already counts.
    this.backend.engine.readEvents();
    this.ended(error);
    void this.#disconnect(error).catch(() => {});
  }
}

function toJobPart({ local, localOffset, remote, remoteOffset, bytes }: TransferPart): JobPart {
  if (!(local instanceof UcxRegion) || !(remote instanceof UcxRemoteRegion)) {
    throw invalidArgument('part', local, 'regions of the backend ucx');
  }
  const localAddress = local.address + localOffset;
  return { localAddress, remoteRegion: remote.number, remoteKey: remote.key, remoteOffset, bytes };
}

function full(peer: string): WeftlineError {
  return new WeftlineError('WL_CAPACITY', `${peer} has not taken earlier messages: wait until it has`, {
    details: { peer },
  });
}
