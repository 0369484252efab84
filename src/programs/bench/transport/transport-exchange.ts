// One throughput run over any number of connections: sends on some, receives on others, says when it is over.
import type { Transport } from '../../../transport/index.ts';
import { monotonicMicroseconds } from '../harness.ts';
import { type BenchSession, type MessageBuffers, openBuffers } from './transport-session.ts';
import { runStreams, Stream, type MessageStreamOptions, type StreamProgress } from './transport-stream.ts';
import { messagesUnderWay, type TransportWorkload } from './transport-workload.ts';

export interface ThroughputOptions {
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

export interface Flowed {
  readonly messages: number;
  readonly bytes: number;
  readonly gbps: number;
}

export interface ThroughputResult {
  readonly sent: Flowed;
  readonly received: Flowed;
  readonly seconds: number;
  /** Of this process, all its threads. */
  readonly cpuSeconds: number;
  /** Microseconds that each request of this side's sends took. */
  readonly times: readonly number[];
}

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
): Promise<ThroughputResult> {
  const times: number[] = [];
  const cpu = process.cpuUsage();
  const begin = monotonicMicroseconds();
  const requests = workload.iterations === 0 ? Infinity : workload.iterations;
  const until = workload.iterations === 0 ? begin + workload.seconds * 1e6 : Infinity;
  const sending: MessageStreamOptions = { workload, requests, until, times };
  // The sender decides when it is over.
  const receiving: MessageStreamOptions = { workload, requests, until: Infinity };
  const senders = outgoing.map(
    (session, index) => new Stream(session, outBuffers[index] as MessageBuffers, true, sending),
  );
  const receivers = incoming.map(
    (session, index) => new Stream(session, inBuffers[index] as MessageBuffers, false, receiving),
  );
  const seconds = onSecond === undefined ? undefined : new Seconds(senders, receivers, onSecond);
  const said: Promise<void>[] = [];
  const sayWhenOver = (): boolean => {
    for (const [index, session] of outgoing.entries()) {
      if (said[index] === undefined && senders[index]?.isOver === true) said[index] = session.say(OVER);
    }
    return Object.keys(said).length === outgoing.length;
  };
  await runStreams(transport, [...senders, ...receivers], {
    isOver: () => sayWhenOver() && incoming.every((session) => session.hasWord),
    onBreath: (now) => seconds?.look(now),
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
    cpuSeconds: (used.user + used.system) / 1e6,
    times,
  };
}

function flowed(streams: readonly Stream[]): Flowed {
  const { messages, bytes } = total(streams);
  const microseconds = Math.max(0, ...streams.map(({ result }) => result.microseconds));
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

/** Tells once a second what passed since the second before. */
class Seconds {
  readonly #senders: readonly Stream[];
  readonly #receivers: readonly Stream[];
  readonly #onSecond: (second: SecondOfExchange) => void;
  #at: number = monotonicMicroseconds();
  #sent: StreamProgress = { messages: 0, bytes: 0 };
  #received: StreamProgress = { messages: 0, bytes: 0 };

  constructor(senders: readonly Stream[], receivers: readonly Stream[], onSecond: (second: SecondOfExchange) => void) {
    this.#senders = senders;
    this.#receivers = receivers;
    this.#onSecond = onSecond;
  }

  look(now: number): void {
    if (now - this.#at < 1e6) return;
    const sent = total(this.#senders);
    const received = total(this.#receivers);
    this.#onSecond({
      sent: difference(sent, this.#sent),
      received: difference(received, this.#received),
      seconds: (now - this.#at) / 1e6,
    });
    this.#at = now;
    this.#sent = sent;
    this.#received = received;
  }
}

function difference(now: StreamProgress, before: StreamProgress): StreamProgress {
  return { messages: now.messages - before.messages, bytes: now.bytes - before.bytes };
}
