// Carries out the commands of one queue: posts them to the channels of their peers, and counts them when delivered. Hot path.
import { queueCommandKinds } from '../../abi/device-api.ts';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import { type CommandReader, emptyQueueCommand } from './command-queue.ts';

/** How a peer is reached, in the order of posting. BackendChannel of the agent is one, bound to regions by the routes. */
interface CommandChannel {
  /** Operations posted, and how many of them, from the first on, are visible at the peer. */
  readonly posted: number;
  readonly delivered: number;
  /** Nothing is delivered any more. */
  readonly error: WeftlineError | undefined;
  /** See BackendChannel. */
  send?(): void;
}

/** The way of the commands of one request to one of its remote ranges. */
export interface CommandRoute {
  readonly channel: CommandChannel;
  /** False, with nothing posted, if there is no room now. Throws for what can never be posted. */
  put(source: number, target: number, bytes: number): boolean;
  signal(target: number, add: number): boolean;
  /** Writes a number of 64 bits, given as its halves, at a multiple of 8. */
  store(target: number, low: number, high: number): boolean;
  /** The same, after all that came before it, as a signal does. */
  set(target: number, low: number, high: number): boolean;
}

export interface ServedRequest {
  readonly peer: string;
  /** Routes by number of the remote range. */
  readonly remotes: readonly CommandRoute[];
}

/** Stands for the channel of a command that failed before it was posted. */
const nowhere: CommandChannel = { posted: 0, delivered: 0, error: undefined };

interface CommandServerOptions {
  /** Hears of each failure of a channel or of a command once. */
  readonly onFailure: (error: WeftlineError) => void;
  /** What a peer that has closed its side did not take counts as delivered: what it needed had come. */
  readonly ignoresClosed?: boolean | undefined;
}

export class CommandServer {
  readonly #reader: CommandReader;
  readonly #requests: readonly (ServedRequest | undefined)[];
  readonly #onFailure: (error: WeftlineError) => void;
  readonly #ignoresClosed: boolean;
  readonly #command = emptyQueueCommand();
  /** Columns of the commands under way, by slot. */
  readonly #channels: CommandChannel[];
  readonly #sequences: Float64Array;
  readonly #requestOf: Uint16Array;
  /** The command in #command was taken, but there was no room for it. */
  #isHeld = false;
  #delivered = 0;
  /** The channel that the last signal went to, until it is told that this was all. */
  #toSend: CommandChannel | undefined;
  /** Why bytes were not sent. Until the failure was reported, signals of the channel fail too, so that none announces those bytes. */
  readonly #withheld = new Map<CommandChannel, WeftlineError>();

  /** `requests` by number, may grow later. */
  constructor(
    reader: CommandReader,
    requests: readonly (ServedRequest | undefined)[],
    { onFailure, ignoresClosed = false }: CommandServerOptions,
  ) {
    this.#reader = reader;
    this.#requests = requests;
    this.#onFailure = onFailure;
    this.#ignoresClosed = ignoresClosed;
    this.#channels = Array.from({ length: reader.capacity }, () => nowhere);
    this.#sequences = new Float64Array(reader.capacity);
    this.#requestOf = new Uint16Array(reader.capacity);
  }

  /** Takes what has been pushed, counts what is delivered. Never waits. True if anything happened. */
  step(): boolean {
    traceBegin('device-api.serve');
    const hasPosted = this.#post();
    const hasSettled = this.#settle();
    traceEnd('device-api.serve');
    return hasSettled || hasPosted;
  }

  /** Nothing that was taken is under way. */
  get isIdle(): boolean {
    return this.#reader.underWay === 0;
  }

  #post(): boolean {
    const reader = this.#reader;
    let count = 0;
    // A bound, so that the delivered ones are counted now and then however many come.
    for (; count < reader.capacity; count += 1) {
      if (!this.#isHeld && !reader.take(this.#command)) break;
      this.#isHeld = !this.#carryOut((reader.taken - 1) & (reader.capacity - 1));
      if (this.#isHeld) break;
    }
    // What a signal ends goes now; a put may still be followed by its signal.
    if (this.#toSend !== undefined) this.#send(this.#toSend);
    return count > 0;
  }

  #send(channel: CommandChannel): void {
    this.#toSend = undefined;
    try {
      channel.send?.();
    } catch (error) {
      // The channel has it too, and its commands end with it.
      this.#onFailure(asWeftlineError(error));
    }
  }

  /** False if there is no room for the command now. */
  #carryOut(slot: number): boolean {
    const { kind, request, remote } = this.#command;
    this.#requestOf[slot] = request;
    const route = this.#requests[request]?.remotes[remote];
    if (route === undefined) {
      const what = `request ${request}, remote range ${remote}, kind ${kind}`;
      this.#refuse(slot, new WeftlineError('WL_PROTOCOL', `A device pushed an invalid command: ${what}`));
      return true;
    }
    const { channel } = route;
    this.#channels[slot] = channel;
    if (channel.error !== undefined) {
      this.#sequences[slot] = Number.POSITIVE_INFINITY;
      return true;
    }
    const tells = kind === queueCommandKinds.signal || kind === queueCommandKinds.set;
    try {
      if (tells && this.#withheld.size > 0) this.#checkNothingWithheld(channel);
      if (!this.#postTo(route)) return false;
    } catch (thrown) {
      const error = asWeftlineError(thrown);
      this.#refuse(slot, error);
      if (!tells) this.#withheld.set(channel, error);
      return true;
    }
    this.#sequences[slot] = channel.posted;
    if (!tells) return true;
    if (this.#toSend !== undefined && this.#toSend !== channel) this.#send(this.#toSend);
    this.#toSend = channel;
    return true;
  }

  #postTo(route: CommandRoute): boolean {
    const { kind, target, source, bytes, low, high } = this.#command;
    if (kind === queueCommandKinds.put) return route.put(source, target, bytes);
    if (kind === queueCommandKinds.signal) return route.signal(target, high * 2 ** 32 + low);
    return kind === queueCommandKinds.store ? route.store(target, low, high) : route.set(target, low, high);
  }

  #checkNothingWithheld(channel: CommandChannel): void {
    if (!this.#reader.hasFailed) this.#withheld.clear();
    const error = this.#withheld.get(channel);
    if (error !== undefined) throw error;
  }

  /** The command ends without having been posted. */
  #refuse(slot: number, error: WeftlineError): void {
    this.#channels[slot] = nowhere;
    this.#sequences[slot] = 0;
    // The device and its host hear once of thousands of commands that are refused alike.
    if (this.#reader.hasFailed) return;
    this.#reader.fail(this.#requestOf[slot]!);
    this.#onFailure(error);
  }

  #settle(): boolean {
    const reader = this.#reader;
    const held = this.#isHeld ? 1 : 0;
    const underWay = reader.underWay - held;
    let count = 0;
    for (; count < underWay; count += 1) {
      const slot = (this.#delivered + count) & (reader.capacity - 1);
      const channel = this.#channels[slot] as CommandChannel;
      if (channel.delivered >= this.#sequences[slot]!) continue;
      if (channel.error === undefined) break;
      // A failed command is over too: the device must not wait for it, it sees the failure.
      if (!this.#ignoresClosed || channel.error.code !== 'WL_CLOSED') reader.fail(this.#requestOf[slot]!);
      this.#onFailure(channel.error);
    }
    if (count === 0) return false;
    this.#delivered = (this.#delivered + count) | 0;
    reader.deliver(count);
    return true;
  }
}
