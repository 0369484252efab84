// One throughput run over any number of connections: sends on some, receives on others, requests kept under way in every flow,
// until a count or a time is reached, and says when it is over.
import type { Transport } from '../../../transport/index.ts';
import { monotonicMicroseconds } from '../harness.ts';
import {
  type BenchSession,
  type MessageBuffers,
  openBuffers,
  messagesUnderWay,
  type TransportWorkload,
} from './transport-session.ts';

interface ThroughputOptions {
  readonly transport: Transport;
  readonly workload: TransportWorkload;
  /** Connections to send on, and to receive on; one may be both. */
  readonly outgoing: readonly BenchSession[];
  readonly incoming: readonly BenchSession[];
  /** Called once a second with what passed in it. */
  readonly onSecond?: (second: SecondOfExchange) => void;
}

export interface SecondOfExchange {
  readonly sent: StreamProgress;
  readonly received: StreamProgress;
  readonly seconds: number;
}

export type ThroughputResult = Awaited<ReturnType<typeof exchange>>;

const OVER = 'over';

export async function runExchange(options: ThroughputOptions): Promise<ThroughputResult> {
  const { transport, workload, outgoing, incoming } = options;
  const buffers: MessageBuffers[] = [];
  const open = async (): Promise<MessageBuffers> => {
    const opened = await openBuffers(transport, messagesUnderWay(workload), workload.msize);
    buffers.push(opened);
    return opened;
  };
  for (const session of new Set([...outgoing, ...incoming])) session.beginExchange(workload.nflow);
  try {
    const outBuffers = await Promise.all(outgoing.map(open));
    const inBuffers = await Promise.all(incoming.map(open));
    return await exchange(options, outBuffers, inBuffers);
  } finally {
    for (const opened of buffers) await opened[Symbol.asyncDispose]();
  }
}

async function exchange(
  { transport, workload, outgoing, incoming, onSecond }: ThroughputOptions,
  outBuffers: readonly MessageBuffers[],
  inBuffers: readonly MessageBuffers[],
) {
  const times: number[] = [];
  const cpu = process.cpuUsage();
  const begin = monotonicMicroseconds();
  const requests = workload.iterations === 0 ? Infinity : workload.iterations;
  const until = workload.iterations === 0 ? begin + workload.seconds * 1e6 : Infinity;
  const sending: MessageStreamOptions = { workload, requests, until, times };
  // The sender decides when it is over.
  const receiving: MessageStreamOptions = { workload, requests, until: Infinity };
  const senders = outgoing.map((session, index) => new Stream(session, outBuffers[index]!, true, sending));
  const receivers = incoming.map((session, index) => new Stream(session, inBuffers[index]!, false, receiving));
  const onBreath = onSecond === undefined ? () => {} : everySecond(senders, receivers, onSecond);
  const said: Promise<void>[] = [];
  const sayWhenOver = (): boolean => {
    for (const [index, session] of outgoing.entries()) {
      if (said[index] === undefined && senders[index]?.isOver === true) said[index] = session.say(OVER);
    }
    return Object.keys(said).length === outgoing.length;
  };
  await runStreams(transport, [...senders, ...receivers], {
    isOver: () => sayWhenOver() && incoming.every((session) => session.hasWord),
    onBreath,
  });
  await Promise.all(said);
  // What was said came behind the last message, whose end may not have been taken yet.
  for (const stream of receivers) stream.advance();
  const end = monotonicMicroseconds();
  const used = process.cpuUsage(cpu);
  for (const session of incoming) await session.hear();
  for (const stream of receivers) await stream.withdraw();
  return {
    sent: flowed(senders),
    received: flowed(receivers),
    seconds: (end - begin) / 1e6,
    /** CPU time of this process, all its threads. */
    cpuSeconds: (used.user + used.system) / 1e6,
    /** Microseconds that each request of this side's sends took. */
    times: times as readonly number[],
  };
}

function flowed(streams: readonly Stream[]) {
  const { messages, bytes } = total(streams);
  const microseconds = Math.max(0, ...streams.map(({ microseconds: of }) => of));
  return { messages, bytes, gbps: microseconds === 0 ? 0 : (bytes * 8) / microseconds / 1000 };
}

function total(streams: readonly Stream[]): StreamProgress {
  let messages = 0;
  let bytes = 0;
  for (const { progress } of streams) {
    messages += progress.messages;
    bytes += progress.bytes;
  }
  return { messages, bytes };
}

/** What looks at the streams now and then, and tells once a second what passed since the second before. */
function everySecond(
  senders: readonly Stream[],
  receivers: readonly Stream[],
  onSecond: (second: SecondOfExchange) => void,
): (now: number) => void {
  let last = { at: monotonicMicroseconds(), sent: total(senders), received: total(receivers) };
  return (at) => {
    if (at - last.at < 1e6) return;
    const [sent, received] = [total(senders), total(receivers)];
    const seconds = (at - last.at) / 1e6;
    onSecond({ sent: difference(sent, last.sent), received: difference(received, last.received), seconds });
    last = { at, sent, received };
  };
}

function difference(now: StreamProgress, before: StreamProgress): StreamProgress {
  return { messages: now.messages - before.messages, bytes: now.bytes - before.bytes };
}

/** A thread that blocks must look at timers and sockets now and then. */
const BREATH_MICROSECONDS = 100_000;
const WAIT_MS = 100;
/** Stands in place of a handle. */
const NO_REQUEST = -1;

/** What has happened so far, for lines per second. */
interface StreamProgress {
  readonly messages: number;
  readonly bytes: number;
}

interface MessageStreamOptions {
  readonly workload: TransportWorkload;
  /** Requests of each flow; Infinity for none. */
  readonly requests: number;
  /** Posts nothing more after this time, on the clock of monotonicMicroseconds; Infinity for none. */
  readonly until: number;
  /** Microseconds that each request took, if wanted. */
  readonly times?: number[];
}

/** Requests of one direction: `nmsg` messages each, `nreq` under way in each of `nflow` flows. */
class Stream {
  readonly #session: BenchSession;
  readonly #buffers: MessageBuffers;
  readonly #isSender: boolean;
  readonly #options: MessageStreamOptions;
  /** Handles by slot, that is flow * nreq + request, and message. */
  readonly #handles: Float64Array;
  readonly #posted: Float64Array;
  /** Messages of a slot's request that are still under way; -1: nothing more to post. */
  readonly #left: Int32Array;
  readonly #requestsOf: Float64Array;
  readonly #begin: number = monotonicMicroseconds();
  #live = 0;
  #messages = 0;
  #bytes = 0;
  #last: number = this.#begin;

  constructor(session: BenchSession, buffers: MessageBuffers, isSender: boolean, options: MessageStreamOptions) {
    const { nflow, nreq } = options.workload;
    this.#session = session;
    this.#buffers = buffers;
    this.#isSender = isSender;
    this.#options = options;
    this.#handles = new Float64Array(messagesUnderWay(options.workload)).fill(NO_REQUEST);
    this.#posted = new Float64Array(nflow * nreq);
    this.#left = new Int32Array(nflow * nreq);
    this.#requestsOf = new Float64Array(nflow);
    for (let slot = 0; slot < nflow * nreq; slot += 1) this.#post(slot);
  }

  get isOver(): boolean {
    return this.#live === 0;
  }

  get progress(): StreamProgress {
    return { messages: this.#messages, bytes: this.#bytes };
  }

  /** The time from the first post to the last end. */
  get microseconds(): number {
    return this.#last - this.#begin;
  }

  /** Takes the ends of requests and posts the next ones. False if nothing had ended. */
  advance(): boolean {
    const { transport } = this.#session;
    const { nmsg } = this.#options.workload;
    let hasMoved = false;
    for (let index = 0; index < this.#handles.length; index += 1) {
      const handle = this.#handles[index] as number;
      if (handle === NO_REQUEST || transport.state(handle) === 'pending') continue;
      this.#bytes += this.#take(handle);
      this.#messages += 1;
      this.#handles[index] = NO_REQUEST;
      hasMoved = true;
      const slot = Math.floor(index / nmsg);
      (this.#left[slot] as number) -= 1;
      if (this.#left[slot] === 0) this.#ended(slot);
    }
    return hasMoved;
  }

  /** Withdraws what is still under way: the other side has said that nothing more comes. */
  async withdraw(): Promise<void> {
    const { connection, transport } = this.#session;
    for (const handle of this.#handles) if (handle !== NO_REQUEST) connection.cancel(handle);
    // They fail, unless their message came after all; either way they end here.
    for (const handle of this.#handles) if (handle !== NO_REQUEST) await transport.wait(handle).catch(() => {});
    this.#handles.fill(NO_REQUEST);
    this.#live = 0;
  }

  #take(handle: number): number {
    const { transport } = this.#session;
    const { workload } = this.#options;
    const bytes = transport.take(handle);
    return this.#isSender ? workload.msize : bytes;
  }

  #ended(slot: number): void {
    const now = monotonicMicroseconds();
    this.#live -= 1;
    this.#last = now;
    this.#options.times?.push(now - (this.#posted[slot] as number));
    this.#post(slot);
  }

  #post(slot: number): void {
    const { workload, requests, until } = this.#options;
    const { nmsg, nreq, msize } = workload;
    const flow = Math.floor(slot / nreq);
    const now = monotonicMicroseconds();
    if ((this.#requestsOf[flow] as number) >= requests || now >= until) return;
    (this.#requestsOf[flow] as number) += 1;
    this.#live += 1;
    this.#posted[slot] = now;
    this.#left[slot] = nmsg;
    const session = this.#session;
    const { connection } = session;
    const { region } = this.#buffers;
    for (let message = 0; message < nmsg; message += 1) {
      const index = slot * nmsg + message;
      const part = { region, offset: this.#buffers.offsetOf(index), bytes: msize, flow: session.firstFlow + flow };
      this.#handles[index] = this.#isSender ? connection.send(part) : connection.receive(part);
    }
  }
}

/** Advances streams until `isOver` says so. `onBreath` is called about ten times a second. */
async function runStreams(
  transport: Transport,
  streams: readonly Stream[],
  { isOver, onBreath }: { readonly isOver: () => boolean; readonly onBreath: (now: number) => void },
): Promise<void> {
  let nextBreath = monotonicMicroseconds() + BREATH_MICROSECONDS;
  for (;;) {
    const seen = transport.ended;
    let hasMoved = false;
    for (const stream of streams) if (stream.advance()) hasMoved = true;
    if (isOver()) return;
    const now = monotonicMicroseconds();
    if (now >= nextBreath) {
      nextBreath = now + BREATH_MICROSECONDS;
      onBreath(now);
      // So that the end of the other side's process is noticed.
      await new Promise((resolve) => setImmediate(resolve));
    }
    if (!hasMoved) transport.waitForEndBlocking(seen, WAIT_MS);
  }
}

export function secondLine({ nflow }: TransportWorkload, { sent, received, seconds }: SecondOfExchange): string {
  const show = ({ bytes, messages }: { bytes: number; messages: number }): string =>
    `${((bytes * 8) / seconds / 1e9).toFixed(2)} Gbps(${messages})`;
  return `(${nflow} flows) TX Tpt: ${show(sent)}, RX Tpt: ${show(received)}`;
}
