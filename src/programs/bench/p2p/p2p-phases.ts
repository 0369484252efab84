// What the P2P bench moves, its two sides, and its phases: the client says which, both do their side of it.
import {
  DescriptorList,
  type Operation,
  type Transfer,
  type Endpoint,
  type EndpointConnection,
  type RemoteMemory,
} from '../../../agent/index.ts';
import { monotonicMicroseconds, quantilesOf } from '../harness.ts';
import { serveTransportBench } from '../transport/transport-bench.ts';
import { quantile } from '../../../core/quantile.ts';
import { startPerftest } from '../peer-programs.ts';
import { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { ControlChannel } from '../../../meeting/control-channel.ts';
import { invalidArgument } from '../../../core/errors.ts';
import { defaultTransportWorkload, messagesUnderWay } from '../transport/transport-session.ts';
import { formatBytes } from '../../../core/byte-size.ts';

/** The first is what UCCL's benchmark.py does, and the default. */
export const p2pModes = ['send', 'write', 'read'] as const;
type P2pMode = (typeof p2pModes)[number];

export interface P2pWorkload {
  readonly mode: P2pMode;
  readonly sizes: readonly number[];
  /** Messages of each size; in a sweep of blocks, transfers, and a sixteenth of them beyond 1 MiB. */
  readonly iterations: number;
  /** Messages that are under way at a time. */
  readonly inflight: number;
  /** Sweep of blocks and batches as nixlbench does it; undefined for none. */
  readonly blocks: BlockSweep | undefined;
  /** Rounds beside the ceiling of the path that was chosen; 0 for none. */
  readonly compare: number;
  /** Round trips of `PING_BYTES`; 0 for none. */
  readonly pings: number;
  /** Blocks of one transfer of very many; 0 for none. */
  readonly descriptors: number;
  /** Bytes of each side's memory, of a client that measures something else with it. */
  readonly memoryBytes?: number;
}

/** Both double from the first to the last. */
export interface BlockSweep {
  readonly startBlockBytes: number;
  readonly maxBlockBytes: number;
  readonly startBatch: number;
  readonly maxBatch: number;
}

/** The sizes of UCCL's benchmark.py. */
export const defaultSizes = [256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 10_485_760, 104_857_600] as const;
export const DEFAULT_ITERATIONS = 1000;
export const PING_BYTES = 256;
/** Bytes of a block of the transfer of very many, and from one block to the next. */
const DESCRIPTOR_BYTES = 64;
const DESCRIPTOR_STRIDE = 128;
/** Most blocks of that transfer. */
export const MAX_DESCRIPTORS = 8_000_000;

const LARGE_BYTES = 1 << 20;
const LARGE_FACTOR = 16;
/** Bytes of each side's memory that messages under way take. */
const MEMORY_BYTES = 1 << 30;

/** Sizes below are bound by other costs than bytes, and are not compared with the ceiling of their path. */
export const MIN_COMPARED_BYTES = 1 << 20;
/** Messages under way in the transport's bench, which is one of those ceilings: as many are under way beside it. */
export const COMPARED_SLOTS: number = messagesUnderWay(defaultTransportWorkload);

/** Fails with WL_INVALID_ARGUMENT. */
export function checkP2pWorkload({ sizes, inflight, blocks, descriptors, compare, pings }: P2pWorkload): void {
  for (const size of sizes) {
    if (!Number.isInteger(size) || size < 1 || size > MEMORY_BYTES) {
      throw invalidArgument('sizes', size, `1 to ${MEMORY_BYTES} bytes (${formatBytes(MEMORY_BYTES)})`);
    }
  }
  if (compare > 0 && pings === 0 && sizes.every((size) => size < MIN_COMPARED_BYTES)) {
    const expected = `with --compare a size of at least ${formatBytes(MIN_COMPARED_BYTES)}, as smaller ones are bound by other costs than bytes, or --pings`;
    throw invalidArgument('sizes', sizes, expected);
  }
  if (!Number.isInteger(descriptors) || descriptors < 0 || descriptors > MAX_DESCRIPTORS) {
    throw invalidArgument('descriptors', descriptors, `0 to ${MAX_DESCRIPTORS}`);
  }
  if (inflight < 1 || inflight > 256) throw invalidArgument('inflight', inflight, '1 to 256');
  if (blocks !== undefined && blocks.maxBlockBytes * blocks.maxBatch > MEMORY_BYTES) {
    throw invalidArgument(
      '--blocks times --batches',
      blocks.maxBlockBytes * blocks.maxBatch,
      `up to ${MEMORY_BYTES} bytes`,
    );
  }
}

/** Transfers of `bytes` in a sweep of blocks, as nixlbench has them. */
export function sweepIterations(iterations: number, bytes: number): number {
  if (bytes <= LARGE_BYTES) return iterations;
  return Math.min(iterations, Math.max(16, Math.floor(iterations / LARGE_FACTOR)));
}

/** Messages of that size that are under way at a time: fewer where they would not fit. */
export function slotsOf(inflight: number, bytes: number): number {
  return Math.max(1, Math.min(inflight, Math.floor(MEMORY_BYTES / bytes)));
}

/** Bytes of memory that a side needs. */
export function memoryOf({ sizes, inflight, blocks, descriptors, compare, memoryBytes = 0 }: P2pWorkload): number {
  const slots = compare === 0 ? inflight : Math.max(inflight, COMPARED_SLOTS);
  const messages = sizes.map((bytes) => bytes * slotsOf(slots, bytes));
  const swept = blocks === undefined ? 0 : blocks.maxBlockBytes * blocks.maxBatch;
  return Math.max(PING_BYTES, ...messages, swept, descriptors * DESCRIPTOR_STRIDE, memoryBytes);
}

/** Values that double from `first` to `last`. */
export function doubling(first: number, last: number): number[] {
  const values: number[] = [];
  for (let value = first; value <= last; value *= 2) values.push(value);
  return values;
}

// The phases.

/** Names that the sides register their memory under. */
export const MEMORY_NAMES = {
  client: 'client',
  server: 'server',
  clientHost: 'client host',
  serverHost: 'server host',
} as const;

/** What the client says before each phase. */
export type P2pPhase =
  | {
      readonly phase: 'size';
      readonly bytes: number;
      readonly count: number;
      readonly slots: number;
    }
  | { readonly phase: 'one-sided'; readonly bytes: number; readonly iterations: number }
  | { readonly phase: 'ping'; readonly rounds: number }
  | { readonly phase: 'transport' }
  | { readonly phase: 'perftest' }
  | { readonly phase: 'end' };

/** A long run lets the event loop turn this often. */
const TURN_MICROSECONDS = 50_000;
const PING = Buffer.from('hey');
const PREPARATIONS = 20;
const WARM_PINGS = 1000;

interface ServeOptions {
  readonly onSize: (result: SizeResult) => void;
  readonly onOneSided: (size: { readonly bytes: number; readonly iterations: number }) => void;
  /** Numeric address for the transport bench to listen at. */
  readonly host: string;
}

/** The server's side: does what the client says until that says `end`. */
export async function serveP2pPhases(session: P2pSession, { onSize, onOneSided, host }: ServeOptions): Promise<void> {
  for (;;) {
    const phase = await session.hear<P2pPhase>();
    switch (phase.phase) {
      case 'end':
        return;
      case 'size':
        onSize(await exchangeMessages(session, phase, 'recv'));
        break;
      case 'one-sided':
        onOneSided(phase);
        break;
      case 'ping':
        await answerPings(session, phase.rounds);
        break;
      case 'transport':
        await serveTransportBench({
          host,
          port: 0,
          onLine: () => {},
          onListening: (port) => session.say({ port }),
        });
        break;
      case 'perftest':
        await servePerftest(session);
        break;
      default:
        phase satisfies never;
    }
  }
}

async function servePerftest(session: P2pSession): Promise<void> {
  const server = await startPerftest();
  session.say({ port: server?.port ?? 0 });
  if (server === undefined) return;
  await session.hear();
  server.stop();
}

interface SizeRun {
  readonly mode: P2pMode;
  readonly bytes: number;
  readonly iterations: number;
  readonly inflight: number;
}

/** Messages of one size; the server is told, and receives those that are sent. */
export async function runSize(session: P2pSession, run: SizeRun): Promise<SizeResult> {
  const { mode, bytes } = run;
  const count = run.iterations;
  const slots = slotsOf(run.inflight, bytes);
  if (mode === 'send') {
    session.say({ phase: 'size', bytes, count, slots } satisfies P2pPhase);
    return exchangeMessages(session, { bytes, count, slots }, 'send');
  }
  session.say({ phase: 'one-sided', bytes, iterations: count } satisfies P2pPhase);
  return runOneSided(session, { mode, bytes, count, slots });
}

interface Counted {
  readonly bytes: number;
  readonly count: number;
  readonly slots: number;
}

/** `host`: between the host memory of both sides, which are measured with memory of GPUs. */
export type MovedMemory = 'own' | 'host';

/** Writes or reads; the server does nothing. */
export async function runOneSided(
  session: P2pSession,
  {
    mode,
    bytes,
    count,
    slots,
    memory = 'own',
  }: Counted & { readonly mode: 'write' | 'read'; readonly memory?: MovedMemory },
): Promise<SizeResult> {
  const transfers = await prepareSlots(session, mode, { bytes, slots, memory });
  try {
    for (const transfer of transfers) {
      transfer.post();
      transfer.waitBlocking();
    }
    const begin = monotonicMicroseconds();
    let turn = begin;
    for (let index = 0; index < count; index += 1) {
      const transfer = transfers[index % slots] as Transfer;
      if (index >= slots) transfer.waitBlocking();
      transfer.post();
      const now = bytes >= 65_536 || index % 256 === 0 ? monotonicMicroseconds() : turn;
      if (now - turn < TURN_MICROSECONDS) continue;
      turn = now;
      await new Promise((resolve) => setImmediate(resolve));
    }
    for (const transfer of transfers) transfer.waitBlocking();
    return sized({ bytes, count, slots }, monotonicMicroseconds() - begin);
  } finally {
    for (const transfer of transfers) await transfer.close();
  }
}

export async function prepareSlots(
  session: P2pSession,
  operation: 'write' | 'read',
  {
    bytes,
    slots,
    memory: moved = 'own',
  }: { readonly bytes: number; readonly slots: number; readonly memory?: MovedMemory },
): Promise<Transfer[]> {
  const { connection, endpoint } = session;
  const memory = moved === 'own' ? session.memory : session.hostMemory;
  const remote = await session.remote(moved === 'own' ? MEMORY_NAMES.server : MEMORY_NAMES.serverHost);
  const { peer, backend } = connection;
  const prepare = (index: number): Promise<Transfer> =>
    endpoint.agent.prepare({
      operation,
      peer,
      backend,
      local: session.slot(memory, index, bytes),
      remote: session.slot(remote, index, bytes),
    });
  return Promise.all(Array.from({ length: slots }, (_, index) => prepare(index)));
}

/** One side of messages: both move as many from or to the same places. */
function exchangeMessages(session: P2pSession, counted: Counted, way: 'send' | 'recv'): Promise<SizeResult> {
  const { connection, memory: region } = session;
  const { bytes } = counted;
  return exchange(counted, (slot) => connection[way]({ region, offset: slot * bytes, bytes }));
}

async function exchange(counted: Counted, start: (slot: number) => Operation): Promise<SizeResult> {
  const { count, slots } = counted;
  // One message that does not count.
  await start(0).wait();
  const under: Operation[] = [];
  const begin = monotonicMicroseconds();
  for (let index = 0; index < count; index += 1) {
    if (under.length === slots) await (under.shift() as Operation).wait();
    under.push(start(index % slots));
  }
  for (const operation of under) await operation.wait();
  return sized(counted, monotonicMicroseconds() - begin);
}

export type SizeResult = ReturnType<typeof sized>;

/** gbps: 1e9 bits per second. */
function sized({ bytes, count, slots }: Counted, microseconds: number) {
  const gigabytesPerSecond = (bytes * count) / microseconds / 1000;
  const seconds = microseconds / 1e6;
  return { bytes, iterations: count, inflight: slots, seconds, gbps: gigabytesPerSecond * 8, gigabytesPerSecond };
}

/** Batches of blocks, as nixlbench sweeps and measures them. */
export async function runBlocks(
  session: P2pSession,
  { mode, sweep, iterations }: { mode: 'write' | 'read'; sweep: BlockSweep; iterations: number },
  onResult: (result: BlockResult) => void,
): Promise<BlockResult[]> {
  const results: BlockResult[] = [];
  for (const blockBytes of doubling(sweep.startBlockBytes, sweep.maxBlockBytes)) {
    for (const batch of doubling(sweep.startBatch, sweep.maxBatch)) {
      const count = sweepIterations(iterations, blockBytes * batch);
      const result = await runBatch(session, { mode, blockBytes, batch, count });
      results.push(result);
      onResult(result);
    }
  }
  return results;
}

export type BlockResult = Awaited<ReturnType<typeof runBatch>>;

async function runBatch(
  session: P2pSession,
  { mode, blockBytes, batch, count }: { mode: 'write' | 'read'; blockBytes: number; batch: number; count: number },
) {
  const { memory, connection, endpoint } = session;
  const remote = DescriptorList.blocks(await session.remote(MEMORY_NAMES.server), { blockBytes, count: batch });
  const local = DescriptorList.blocks(memory, { blockBytes, count: batch });
  const { peer, backend } = connection;
  const options = { operation: mode, peer, backend, local, remote, merge: false } as const;
  const preparing: number[] = [];
  for (let round = 0; round < PREPARATIONS; round += 1) {
    const begin = monotonicMicroseconds();
    await using prepared = await endpoint.agent.prepare(options);
    preparing.push(monotonicMicroseconds() - begin);
    if (prepared.state !== 'idle') break;
  }
  await using transfer = await endpoint.agent.prepare(options);
  const posting = new Float64Array(count);
  const moving = new Float64Array(count);
  transfer.post();
  transfer.waitBlocking();
  for (let index = 0; index < count; index += 1) {
    const begin = monotonicMicroseconds();
    transfer.post();
    const posted = monotonicMicroseconds();
    transfer.waitBlocking();
    posting[index] = posted - begin;
    moving[index] = monotonicMicroseconds() - begin;
  }
  await new Promise((resolve) => setImmediate(resolve));
  const total = moving.reduce((sum, time) => sum + time, 0);
  return {
    blockBytes,
    batch,
    gigabytesPerSecond: (blockBytes * batch * count) / total / 1000,
    /** Microseconds of one block. */
    latencyMicroseconds: total / (count * batch),
    prepareMicroseconds: tail(preparing),
    postMicroseconds: tail([...posting]),
    transferMicroseconds: tail([...moving]),
  };
}

function tail(times: readonly number[]): { readonly average: number; readonly p99: number } {
  const sorted = times.toSorted((a, b) => a - b);
  return { average: times.reduce((sum, time) => sum + time, 0) / times.length, p99: quantile(sorted, 0.99) };
}

const PING_PAUSE_MS = 100;

/** Microseconds of each round trip, as quantiles. */
export async function runPings(session: P2pSession, rounds: number): Promise<readonly number[]> {
  session.say({ phase: 'ping', rounds } satisfies P2pPhase);
  const [transfer] = await prepareSlots(session, 'write', { bytes: PING_BYTES, slots: 1 });
  if (transfer === undefined) return [];
  await session.hear();
  // If the first ping came before the other side blocks, its endpoint would take it for a word of its own.
  await new Promise((resolve) => setTimeout(resolve, PING_PAUSE_MS));
  const times = new Float64Array(rounds);
  const from = session.connection.peer;
  for (let round = -WARM_PINGS; round < rounds; round += 1) {
    const begin = monotonicMicroseconds();
    transfer.post(PING);
    waitForPing(session, from);
    if (round >= 0) times[round] = monotonicMicroseconds() - begin;
    transfer.waitBlocking();
  }
  await transfer.close();
  return quantilesOf([...times]);
}

async function answerPings(session: P2pSession, rounds: number): Promise<void> {
  const { memory, connection, endpoint } = session;
  const remote = await session.remote(MEMORY_NAMES.client);
  const { peer, backend } = connection;
  await using transfer = await endpoint.agent.prepare({
    operation: 'write',
    peer,
    backend,
    local: session.slot(memory, 0, PING_BYTES),
    remote: session.slot(remote, 0, PING_BYTES),
  });
  session.say({});
  for (let round = 0; round < WARM_PINGS + rounds; round += 1) {
    waitForPing(session, peer);
    transfer.post(PING);
    transfer.waitBlocking();
  }
}

/** What else comes is the endpoint's. */
function waitForPing({ endpoint }: P2pSession, from: string): void {
  for (;;) {
    const notification = endpoint.agent.nextNotificationBlocking({ from });
    if (notification.message.length === PING.length) return;
    endpoint.hear(notification);
  }
}

/** Neighbours of the list are far from each other in memory, so that nothing is joined. */
const STEP = 7919;

/** One transfer of very many small blocks in no order: what it takes to describe, prepare and move it. */
export async function runDescriptors(
  session: P2pSession,
  { mode, count }: { readonly mode: 'write' | 'read'; readonly count: number },
) {
  const { memory, connection, endpoint } = session;
  const { peer, backend } = connection;
  const blocks = { blockBytes: DESCRIPTOR_BYTES, stride: DESCRIPTOR_STRIDE, count };
  const theirs = await session.remote(MEMORY_NAMES.server);
  const order = Uint32Array.from({ length: count }, (_, index) => (index * STEP) % count);
  const residentBefore = process.memoryUsage().rss;
  const begin = monotonicMicroseconds();
  const local = DescriptorList.blocks(memory, blocks).select(order);
  const remote = DescriptorList.blocks(theirs, blocks).select(order);
  const listed = monotonicMicroseconds();
  await using transfer = await endpoint.agent.prepare({ operation: mode, peer, backend, local, remote });
  const prepared = monotonicMicroseconds();
  const residentBytes = process.memoryUsage().rss - residentBefore;
  const posting = monotonicMicroseconds();
  transfer.post();
  const posted = monotonicMicroseconds();
  await transfer.wait();
  return {
    count,
    parts: transfer.telemetry.parts,
    listMilliseconds: (listed - begin) / 1000,
    prepareMilliseconds: (prepared - listed) / 1000,
    postMilliseconds: (posted - posting) / 1000,
    moveMilliseconds: (monotonicMicroseconds() - posting) / 1000,
    residentBytes,
  };
}

// The two sides: words between them, and the memory that is moved.

type Memory = Awaited<ReturnType<Endpoint['allocate']>>;

export class P2pSession {
  readonly endpoint: Endpoint;
  /** The connection of what is measured. */
  readonly connection: EndpointConnection;
  /** What this side moves, from openMemory() on, and host memory beside that of a GPU, to compare with. */
  memory!: Memory;
  hostMemory!: Memory;
  readonly #words: ControlChannel;
  #device: CudaDevice | undefined;
  #tensor: Tensor<'u8'> | undefined;

  /** `words`: for what the sides tell each other, apart from what is measured. */
  constructor(endpoint: Endpoint, connection: EndpointConnection, words: ControlChannel) {
    this.endpoint = endpoint;
    this.connection = connection;
    this.#words = words;
  }

  /** `name` is how the peer finds it. */
  async openMemory(bytes: number, name: string, device: 'cpu' | 'gpu'): Promise<void> {
    if (device === 'gpu') {
      this.#device = await CudaDevice.create({ ordinal: this.endpoint.localGpuIndex });
      this.#tensor = this.#device.empty('u8', [bytes]);
      this.#device.setBytes(this.#tensor, 0xa5);
      await this.#device.stream.idle();
      this.memory = await this.endpoint.register(this.#tensor, name);
      return;
    }
    this.memory = await this.#allocate(bytes, name);
  }

  /** Overwrites this side's memory, of a GPU or not. */
  async write(bytes: Uint8Array): Promise<void> {
    if (this.#tensor === undefined) this.memory.bytes.set(bytes);
    else await this.#tensor.fromHost(bytes);
  }

  /** What this side's memory holds; of host memory the memory itself. */
  async content(): Promise<Uint8Array> {
    return this.#tensor === undefined ? this.memory.bytes : this.#tensor.toHost();
  }

  async openHostMemory(bytes: number, name: string): Promise<void> {
    this.hostMemory = await this.#allocate(bytes, name);
  }

  /** Pages that were never written are quicker to read than memory: all are written. */
  async #allocate(bytes: number, name: string): Promise<Memory> {
    const memory = await this.endpoint.allocate(bytes, name);
    memory.bytes.fill(0xa5);
    return memory;
  }

  remote(name: string): Promise<RemoteMemory> {
    return this.connection.memory(name);
  }

  /** Slot `index` of messages of that size, here or there. */
  slot(memory: Memory | RemoteMemory, index: number, bytes: number): DescriptorList {
    return DescriptorList.of(memory, index * bytes, bytes);
  }

  /** Tells the other side something that JSON can express. */
  say(value: unknown): void {
    sayWord(this.#words, value);
  }

  /** What the other side says next. Fails with the error that it ended with, if it did. */
  hear<T>(): Promise<T> {
    return hearWord(this.#words, this.endpoint.agent.settings.timeoutMs);
  }

  /** Gives the GPU back, after the endpoint was closed. */
  async close(): Promise<void> {
    this.#tensor?.[Symbol.dispose]();
    await this.#device?.[Symbol.asyncDispose]();
  }
}

/** Says a word before there is a session. */
export function sayWord(words: ControlChannel, value: unknown): void {
  words.send({ word: value });
}

/** See P2pSession.hear. */
export async function hearWord<T>(words: ControlChannel, timeoutMs: number): Promise<T> {
  words.deadline = performance.now() + timeoutMs;
  const { word } = await words.receive('next word');
  return word as T;
}
