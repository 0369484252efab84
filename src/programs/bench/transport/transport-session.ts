// What the transport bench moves, and the two sides of a bench over one connection: words between them, and the memory of messages.
import type { Connection, MemoryRegion, RequestHandle, Transport } from '../../../transport/index.ts';
import { type WeftlineError, invalidArgument } from '../../../core/errors.ts';
import { decodePeerError, encodeRefusal } from '../../../meeting/frames.ts';

/** The patterns of UCCL's transport_test, those of its two programs over many ranks, and several engines beside several processes. */
export const transportPatterns = ['basic', 'lat', 'tpt', 'bi', 'incast', 'permutation', 'engines'] as const;
type TransportPattern = (typeof transportPatterns)[number];

export interface TransportWorkload {
  readonly perftype: TransportPattern;
  /** Flows of a connection, each with requests of its own. */
  readonly nflow: number;
  /** Messages of a request: it ends when all of them have. */
  readonly nmsg: number;
  /** Requests of a flow that are under way at a time. */
  readonly nreq: number;
  /** Bytes of a message. */
  readonly msize: number;
  /** Messages of basic, rounds of lat, requests of each flow otherwise; 0: until `seconds` are over. */
  readonly iterations: number;
  readonly seconds: number;
  /** Rounds of lat, or a second of the others, before anything counts. */
  readonly warmup: boolean;
  /** Both sides send and receive. */
  readonly bi: boolean;
}

export const defaultTransportWorkload: TransportWorkload = {
  perftype: 'tpt',
  nflow: 4,
  nmsg: 1,
  nreq: 2,
  msize: 1_000_000,
  iterations: 0,
  seconds: 5,
  warmup: false,
  bi: false,
};

/** Bytes of a message of basic, every word of which is checked. */
export const BASIC_BYTES = 65_536;
export const BASIC_ITERATIONS = 8;
export const LATENCY_ITERATIONS = 10_000;
export const LATENCY_WARMUP = 1000;
const MAX_REGION_BYTES = 1 << 30;

/** Fails with WL_INVALID_ARGUMENT. */
export function checkTransportWorkload(workload: TransportWorkload): void {
  const { nflow, nmsg, nreq, msize } = workload;
  for (const [name, value, most] of [
    ['nflow', nflow, 1024],
    ['nmsg', nmsg, 64],
    ['nreq', nreq, 256],
    ['msize', msize, MAX_REGION_BYTES],
  ] as const) {
    if (!Number.isInteger(value) || value < 1 || value > most) throw invalidArgument(name, value, `1 to ${most}`);
  }
  if (nflow * nmsg * nreq > 1024)
    throw invalidArgument('--nflow * --nmsg * --nreq', nflow * nmsg * nreq, 'at most 1024');
  if (messagesUnderWay(workload) * msize > MAX_REGION_BYTES) {
    const bytes = messagesUnderWay(workload) * msize;
    throw invalidArgument('--nflow * --nmsg * --nreq * --msize', bytes, 'at most 1 GiB under way');
  }
}

/** Messages of one direction that are under way at a time. */
export function messagesUnderWay({ nflow, nmsg, nreq }: TransportWorkload): number {
  return nflow * nmsg * nreq;
}

// The two sides of a bench over one connection.

/** Flows above those of the messages. */
const WORD_FLOW = 65_535;
const WORD_BYTES = 65_536;
/** Each message starts on a page of its own. */
const PAGE = 4096;
/** Longer than an acknowledgement is held back. */
const SETTLE_MS = 10;
/** How long telling the other side of a failure may take: it may be gone. */
const FAREWELL_MS = 2000;

export class BenchSession {
  readonly transport: Transport;
  readonly connection: Connection;
  readonly #in: MemoryRegion;
  readonly #out: MemoryRegion;
  #pending: RequestHandle | undefined;
  #firstFlow = 0;
  #endFlow = 0;

  static async open(transport: Transport, connection: Connection): Promise<BenchSession> {
    const incoming = await transport.register(new Uint8Array(new SharedArrayBuffer(WORD_BYTES)));
    const outgoing = await transport.register(new Uint8Array(new SharedArrayBuffer(WORD_BYTES)));
    return new BenchSession(transport, connection, { incoming, outgoing });
  }

  private constructor(
    transport: Transport,
    connection: Connection,
    { incoming, outgoing }: { incoming: MemoryRegion; outgoing: MemoryRegion },
  ) {
    this.transport = transport;
    this.connection = connection;
    this.#in = incoming;
    this.#out = outgoing;
    this.#pending = this.#receive();
  }

  /** The first flow of the exchange that goes on. */
  get firstFlow(): number {
    return this.#firstFlow;
  }

  /**
   * Begins an exchange in flows of its own. Both sides count alike. Receives that an exchange withdraws at its end keep their
   * places in their flows, where later messages would meet them.
   */
  beginExchange(flows: number): void {
    this.#firstFlow = this.#endFlow + flows > WORD_FLOW ? 0 : this.#endFlow;
    this.#endFlow = this.#firstFlow + flows;
  }

  /** Tells the other side something that JSON can express; resolves when it has arrived. */
  async say(value: unknown): Promise<void> {
    const text = Buffer.from(JSON.stringify(value));
    this.#out.bytes.set(text);
    await this.transport.wait(this.connection.send({ region: this.#out, bytes: text.length, flow: WORD_FLOW }));
  }

  /** Lets the last acknowledgements go out before this thread turns to something else. */
  async settle(): Promise<void> {
    const end = performance.now() + SETTLE_MS;
    while (performance.now() < end) {
      this.transport.progress();
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }

  /** True if the other side has said something that was not heard yet. */
  get hasWord(): boolean {
    return this.#pending === undefined || this.transport.state(this.#pending) !== 'pending';
  }

  /** What the other side says next. */
  async hear<T>(timeoutMs?: number): Promise<T> {
    const pending = this.#pending ?? this.#receive();
    const bytes = await this.transport.wait(pending, timeoutMs === undefined ? {} : { timeoutMs });
    const value = JSON.parse(Buffer.from(this.#in.bytes.subarray(0, bytes)).toString()) as T;
    const failure = decodePeerFailure(value, this.connection.peerName);
    if (failure !== undefined) throw failure;
    this.#pending = undefined;
    try {
      this.#pending = this.#receive();
    } catch {
      // The other side may have closed since. That is for who wants to hear more.
    }
    return value;
  }

  #receive(): RequestHandle {
    return this.connection.receive({ region: this.#in, flow: WORD_FLOW });
  }

  /** Runs one side of the bench. An error is told to the other side; one that the other side has told comes first. */
  async run<T>(side: () => Promise<T>): Promise<T> {
    try {
      return await side();
    } catch (error) {
      if (isFromPeer(error)) throw error;
      await this.#hearFailure();
      await this.#tell(error);
      throw error;
    }
  }

  /** Throws what the other side has told meanwhile. */
  async #hearFailure(): Promise<void> {
    try {
      if (this.#pending !== undefined && this.transport.state(this.#pending) === 'done') await this.hear();
    } catch (error) {
      if (isFromPeer(error)) throw error;
      // The word was taken, or its receive has failed with the connection: what this side knows itself is the reason.
    }
  }

  async #tell(error: unknown): Promise<void> {
    try {
      const text = Buffer.from(JSON.stringify(failureWord(error)));
      this.#out.bytes.set(text);
      const sent = this.connection.send({ region: this.#out, bytes: text.length, flow: WORD_FLOW });
      await this.transport.wait(sent, { timeoutMs: FAREWELL_MS });
    } catch {
      // The connection is gone, and that says enough.
    }
  }
}

/** Memory for `count` messages under way, each on pages of its own. */
export interface MessageBuffers extends AsyncDisposable {
  readonly region: MemoryRegion;
  offsetOf(index: number): number;
}

export async function openBuffers(transport: Transport, count: number, bytes: number): Promise<MessageBuffers> {
  const stride = Math.ceil(bytes / PAGE) * PAGE;
  const memory = new Uint8Array(new SharedArrayBuffer(count * stride));
  // Pages that were never written are all one page of zeros, which is quicker to read than memory.
  memory.fill(0xa5);
  const region = await transport.register(memory);
  return {
    region,
    offsetOf: (index) => index * stride,
    [Symbol.asyncDispose]: () => region.close(),
  };
}

// How one side of a bench tells the other why it ends, so that both can say the cause.

/** What is said in place of the next word. */
interface FailureWord {
  readonly failed: unknown;
}

/** An error that the other side has told is not told back. */
const told = new WeakSet<object>();

export function failureWord(error: unknown): FailureWord {
  return { failed: encodeRefusal(error) };
}

/** The error that a word stands for, if it stands for one; `who` said it. */
export function decodePeerFailure(word: unknown, who: string): WeftlineError | undefined {
  if (typeof word !== 'object' || word === null || !('failed' in word)) return undefined;
  const error = decodePeerError(word.failed, `${who} failed: `);
  told.add(error);
  return error;
}

function isFromPeer(error: unknown): boolean {
  return typeof error === 'object' && error !== null && told.has(error);
}
