// The whole road of the unpack bench: a client sends chunks of scattered pages by the transport, and the server, where they land
// in a pinned ring, moves the pages to their places on its device.
import {
  BLOCK_HEADER_WORDS,
  blockHeaderWord,
  FRAGMENT_WORDS,
  fragmentDescriptor,
  fragmentWord,
  MAX_BLOCK_DESCRIPTORS,
} from '../../../abi/unpack.ts';
import { alignUp } from '../../../abi/layout.ts';
import { wideAt } from '../../../abi/layout.ts';
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaEvent } from '../../../device/cuda/cuda-event.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { Settings } from '../../../settings/settings.ts';
import { type Connection, type MemoryRegion, Transport } from '../../../transport/index.ts';
import { DescriptorBlock, UnpackLauncher } from '../../../unpack/index.ts';
import { shuffled, summarize } from '../harness.ts';
import { machineDocument } from '../machine.ts';
import { BenchSession, openBuffers } from '../transport/transport-session.ts';
import type { MemorySpan } from '../../../unpack/descriptor-block.ts';

/** Said by the client; the server believes none of it. */
interface RoadPlan {
  readonly chunkBytes: number;
  readonly chunks: number;
  readonly fragmentBytes: number;
  readonly iterations: number;
  /** Iterations before them that do not count. */
  readonly warmup: number;
}

/** Messages that are under way. */
const ROAD_DEPTH = 4;
const MAX_CHUNK_BYTES = 2 ** 26;
const MAX_TOTAL_BYTES = 2 ** 30;
const MAX_ITERATIONS = 1_000_000;
const TWO_32 = 2 ** 32;

/** Fails with WL_INVALID_ARGUMENT; at the server, for what a client says. */
export function checkRoadPlan(plan: RoadPlan | null): RoadPlan {
  const { chunkBytes = 0, chunks = 0, fragmentBytes = 0, iterations = 0, warmup = 0 }: Partial<RoadPlan> = plan ?? {};
  const areWhole = [chunkBytes, chunks, fragmentBytes, iterations].every(
    (value) => Number.isSafeInteger(value) && value > 0,
  );
  const fits =
    areWhole &&
    Number.isSafeInteger(warmup) &&
    warmup >= 0 &&
    warmup + iterations <= MAX_ITERATIONS &&
    chunkBytes <= MAX_CHUNK_BYTES &&
    chunks * chunkBytes <= MAX_TOTAL_BYTES &&
    chunkBytes % fragmentBytes === 0 &&
    fragmentBytes % 16 === 0 &&
    chunkBytes / fragmentBytes <= MAX_BLOCK_DESCRIPTORS;
  if (fits && plan !== null) return plan;
  throw new WeftlineError(
    'WL_INVALID_ARGUMENT',
    `Invalid plan of the unpack bench: expected chunks of at most 64 MiB and 1 GiB in all, in fragments of multiples of 16 bytes, at most ${MAX_BLOCK_DESCRIPTORS} to a chunk, got ${JSON.stringify(plan)}`,
    { details: { ...plan } },
  );
}

function fragmentsPerChunk({ chunkBytes, fragmentBytes }: RoadPlan): number {
  return chunkBytes / fragmentBytes;
}

/** Descriptors come first; their source offsets count from the first byte behind them. */
function descriptorBytes(plan: RoadPlan): number {
  return fragmentsPerChunk(plan) * fragmentDescriptor.size;
}

function messageBytes(plan: RoadPlan): number {
  return descriptorBytes(plan) + plan.chunkBytes;
}

/** The place of each fragment of all chunks, in fragments. */
function roadPlaces(plan: RoadPlan): number[] {
  return shuffled(plan.chunks * fragmentsPerChunk(plan), plan.chunks);
}

function writeDescriptors(plan: RoadPlan, message: Uint8Array, destinations: readonly number[]): void {
  const words = new Uint32Array(message.buffer, message.byteOffset, descriptorBytes(plan) / 4);
  for (const [index, place] of destinations.entries()) {
    const at = (index * fragmentDescriptor.size) / 4;
    const offset = place * plan.fragmentBytes;
    words[at + fragmentWord.sourceOffset] = index * plan.fragmentBytes;
    words[at + fragmentWord.length] = plan.fragmentBytes;
    words[at + fragmentWord.destinationOffset] = offset;
    words[at + fragmentWord.destinationOffset + 1] = offset / TWO_32;
  }
}

/** Adds what a message describes to a block; the launcher checks it. Fails with WL_INVALID_ARGUMENT and WL_CAPACITY. */
function readDescriptors(count: number, words: Uint32Array, block: DescriptorBlock): void {
  for (let index = 0; index < count; index++) {
    const at = (index * fragmentDescriptor.size) / 4;
    const destination =
      words[at + fragmentWord.destinationOffset]! + words[at + fragmentWord.destinationOffset + 1]! * TWO_32;
    block.add(words[at + fragmentWord.sourceOffset]!, words[at + fragmentWord.length]!, destination);
  }
}

/** The word at each place, so that no fragment can lie at another's without being noticed. */
function expectedWord(index: number, iteration: number): number {
  return Math.imul(index + 1, 0x9e37_79b9) ^ Math.imul(iteration + 1, 0x85eb_ca6b);
}

export type RoadReport = Awaited<ReturnType<typeof runRoad>>;

interface RoadClientOptions {
  readonly host: string;
  readonly port: number;
  readonly plan: RoadPlan;
  readonly onLine: (text: string) => void;
}

/** Returns what the server measured. Fails with what the server fails with. */
export async function runRoad({ host, port, plan, onLine }: RoadClientOptions) {
  checkRoadPlan(plan);
  await using transport = await Transport.create({ name: 'the unpack client' });
  const connection = await transport.connect({ host, port });
  onLine(`Client connected to ${host}`);
  const session = await BenchSession.open(transport, connection);
  const { microseconds, ...outcome } = await session.run(() => sendAll(session, plan));
  const times = summarize(microseconds);
  return {
    schema: 'weftline.bench.unpack-road/1' as const,
    date: new Date().toISOString(),
    ...outcome,
    plan,
    microseconds: times,
    /** The rate of payload, median. */
    gigabytesPerSecond: (plan.chunks * plan.chunkBytes) / times.median / 1000,
    machine: machineDocument(),
  };
}

async function sendAll(session: BenchSession, plan: RoadPlan): Promise<RoadOutcome> {
  const { transport, connection } = session;
  const bytes = messageBytes(plan);
  await using buffers = await openBuffers(transport, plan.chunks, bytes);
  const places = roadPlaces(plan);
  const perChunk = fragmentsPerChunk(plan);
  const chunkOf = (chunk: number): Uint8Array =>
    buffers.region.bytes.subarray(buffers.offsetOf(chunk)).subarray(0, bytes);
  for (let chunk = 0; chunk < plan.chunks; chunk++) {
    writeDescriptors(plan, chunkOf(chunk), places.slice(chunk * perChunk, (chunk + 1) * perChunk));
  }
  await session.say(plan);
  await session.hear();
  for (let iteration = 0; iteration < plan.warmup + plan.iterations; iteration++) {
    for (let chunk = 0; chunk < plan.chunks; chunk++)
      fillPages(plan, chunkOf(chunk), places.slice(chunk * perChunk), iteration);
    await session.say({ sends: iteration });
    const sends: number[] = [];
    for (let chunk = 0; chunk < plan.chunks; chunk++) {
      sends.push(connection.send({ region: buffers.region, offset: buffers.offsetOf(chunk), bytes }));
      if (chunk >= ROAD_DEPTH) await transport.wait(sends[chunk - ROAD_DEPTH]!);
    }
    for (const send of sends.slice(-ROAD_DEPTH)) await transport.wait(send);
    await session.hear();
  }
  return session.hear<RoadOutcome>();
}

function fillPages(plan: RoadPlan, message: Uint8Array, destinations: readonly number[], iteration: number): void {
  const start = message.byteOffset + descriptorBytes(plan);
  const words = new Int32Array(message.buffer, start, plan.chunkBytes / 4);
  const perPage = plan.fragmentBytes / 4;
  for (let page = 0; page < fragmentsPerChunk(plan); page++) {
    const first = destinations[page]! * perPage;
    for (let word = 0; word < perPage; word++) words[page * perPage + word] = expectedWord(first + word, iteration);
  }
}

interface RoadServerOptions {
  readonly host: string;
  readonly port: number;
  readonly device: CpuDevice | CudaDevice;
  /** How pages are moved. */
  readonly mode: Settings['unpack'];
  readonly onLine: (text: string) => void;
  readonly onListening: (port: number) => void;
}

/** What the server tells when all is received, moved and verified. */
interface RoadOutcome {
  readonly device: string;
  readonly mode: Settings['unpack'];
  /** Times of each iteration, from the first receive posted to the last page in its place. */
  readonly microseconds: readonly number[];
}

/** Serves one client. Fails with WL_CHECK when a page is not what the client sent there. */
export async function serveRoad({ host, port, device, mode, onLine, onListening }: RoadServerOptions): Promise<void> {
  await using transport = await Transport.create({ name: 'the unpack server' });
  const listener = await transport.listen({ host, port });
  onListening(listener.port);
  const connection = await listener.accept({ timeoutMs: transport.settings.timeoutMs });
  listener.close();
  onLine(`Server: ${connection.peerName} at ${connection.peerHost} connected`);
  const session = await BenchSession.open(transport, connection);
  await session.run(async () => {
    const plan = checkRoadPlan(await session.hear<RoadPlan>());
    const microseconds = await receiveAll(session, plan, device, mode);
    const name = device.kind === 'cuda' ? device.properties.name : 'cpu';
    await session.say({ device: name, mode, microseconds } satisfies RoadOutcome);
  });
  await session.settle();
}

async function receiveAll(
  session: BenchSession,
  plan: RoadPlan,
  device: CpuDevice | CudaDevice,
  mode: Settings['unpack'],
): Promise<number[]> {
  const { transport, connection } = session;
  const stride = alignUp(messageBytes(plan), 4096);
  using destination = device.empty('u8', [plan.chunks * plan.chunkBytes]);
  using memory = makeBounce(device, ROAD_DEPTH * stride);
  const { bounce } = memory;
  await using ring = await registerRing(transport, bounce.bytes);
  await using mover = await createMover(mode, { device, bounce, destination });
  const road = { connection, transport, plan, stride, bounce, destination, region: ring.region, mover };
  const microseconds: number[] = [];
  await session.say({ ready: true });
  for (let iteration = 0; iteration < plan.warmup + plan.iterations; iteration++) {
    // The client has its pages together, so that their making is not in the time.
    await session.hear();
    const time = await receiveChunks(road);
    if (iteration >= plan.warmup) microseconds.push(time);
    // What was sent is verified outside of the time, and the client begins the next iteration when that is done.
    await verify(destination, iteration);
    await session.say({ verified: iteration });
  }
  return microseconds;
}

/** Released before its memory is freed, also when a receive is still pending. */
async function registerRing(
  transport: Transport,
  bytes: Uint8Array,
): Promise<AsyncDisposable & { readonly region: MemoryRegion }> {
  const region = await transport.register(bytes);
  return { region, [Symbol.asyncDispose]: () => region.close() };
}

interface EndToEnd {
  readonly connection: Connection;
  readonly transport: Transport;
  readonly plan: RoadPlan;
  /** Bytes from one slot of the ring to the next. */
  readonly stride: number;
  readonly bounce: Bounce;
  readonly destination: Tensor<'u8'>;
  readonly region: MemoryRegion;
  readonly mover: PageMover;
}

async function receiveChunks({ connection, transport, mover, ...road }: EndToEnd): Promise<number> {
  const { plan, stride, bounce, destination, region } = road;
  const bytes = messageBytes(plan);
  const head = descriptorBytes(plan);
  const block = new DescriptorBlock(fragmentsPerChunk(plan));
  const words = Array.from(
    { length: ROAD_DEPTH },
    (_, slot) => new Uint32Array(bounce.bytes.buffer, bounce.bytes.byteOffset + slot * stride, head / 4),
  );
  const receive = (slot: number): number => connection.receive({ region, offset: slot * stride, bytes });
  const begin = performance.now();
  const pending = Array.from({ length: Math.min(ROAD_DEPTH, plan.chunks) }, (_, slot) => receive(slot));
  for (let chunk = 0; chunk < plan.chunks; chunk++) {
    const slot = chunk % ROAD_DEPTH;
    const came = await transport.wait(pending[slot]!);
    if (came !== bytes) {
      throw new WeftlineError('WL_PROTOCOL', `A chunk has ${came} bytes, expected ${bytes}`, {
        details: { came, bytes },
      });
    }
    block.begin({ address: bounce.address + slot * stride + head, bytes: plan.chunkBytes }, destination);
    readDescriptors(fragmentsPerChunk(plan), words[slot]!, block);
    mover.move(slot, block);
    // The slot before this one has had a message's time to be moved.
    const next = chunk - 1 + ROAD_DEPTH;
    if (chunk > 0 && next < plan.chunks) {
      await mover.whenFree(next % ROAD_DEPTH);
      pending[next % ROAD_DEPTH] = receive(next % ROAD_DEPTH);
    }
  }
  for (let slot = 0; slot < pending.length; slot++) await mover.whenFree(slot);
  return (performance.now() - begin) * 1000;
}

async function verify(destination: Tensor<'u8'>, iteration: number): Promise<void> {
  const bytes = await destination.toHost();
  const words = new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  for (let index = 0; index < words.length; index++) {
    if (words[index] === expectedWord(index, iteration)) continue;
    throw new WeftlineError(
      'WL_CHECK',
      `Byte ${index * 4} of the destination is not what was sent there in iteration ${iteration}: expected word ${expectedWord(index, iteration)}, got ${words[index]}`,
      { details: { offset: index * 4, iteration } },
    );
  }
}

function makeBounce(device: CpuDevice | CudaDevice, bytes: number): Disposable & { readonly bounce: Bounce } {
  if (device.kind === 'cuda') {
    const pinned = device.allocateHost(bytes);
    const { deviceAddress, hostAddress } = pinned;
    const bounce = { bytes: pinned.view('u8'), address: deviceAddress, hostAddress };
    return { bounce, [Symbol.dispose]: () => pinned[Symbol.dispose]() };
  }
  const tensor = device.empty('u8', [bytes]);
  const bounce = { bytes: tensor.view(), address: tensor.address, hostAddress: tensor.address };
  return { bounce, [Symbol.dispose]: () => tensor.close() };
}

interface PageMover extends AsyncDisposable {
  /** Begins to move what lies in a slot. */
  move(slot: number, block: DescriptorBlock): void;
  /** Resolves when the slot may be received into again. */
  whenFree(slot: number): Promise<void>;
}

/** Pinned memory of the host for a GPU, a tensor for the CPU device. */
interface Bounce {
  readonly bytes: Uint8Array;
  /** The address that the device sees. */
  readonly address: number;
  /** The address that copies see. */
  readonly hostAddress: number;
}

interface MoverOptions {
  readonly device: CpuDevice | CudaDevice;
  readonly bounce: Bounce;
  readonly destination: Tensor<'u8'>;
}

async function createMover(mode: Settings['unpack'], options: MoverOptions): Promise<PageMover> {
  if (mode === 'kernel') return kernelMover(options);
  return options.device.kind === 'cuda' ? copyEngineMover(options.device, options) : cpuCopyMover(options);
}

async function kernelMover({ device }: MoverOptions): Promise<PageMover> {
  const launcher = await UnpackLauncher.create(device, { pool: { slots: ROAD_DEPTH } });
  const launches = Array.from({ length: ROAD_DEPTH }, () => 0);
  return {
    move: (slot, block) => {
      launches[slot] = launcher.launch(block);
    },
    whenFree: (slot) => launcher.wait(launches[slot]),
    [Symbol.asyncDispose]: () => launcher.close(),
  };
}

function copyEngineMover(device: CudaDevice, { bounce, destination }: MoverOptions): PageMover {
  const { context, stream } = device;
  const events: CudaEvent[] = Array.from({ length: ROAD_DEPTH }, () => device.createEvent());
  return {
    move: (slot, block) => {
      forEachPage(block, bounce, destination, (source, bytes, offset) => {
        const [to, from] = [destination.address + offset, bounce.hostAddress + source];
        context.call('cuMemcpyHtoDAsync', to, from, bytes, stream.handle);
      });
      events[slot]!.record(stream);
    },
    whenFree: (slot) => events[slot]!.wait(),
    [Symbol.asyncDispose]: async () => {
      await stream.drained();
      for (const event of events) event[Symbol.dispose]();
    },
  };
}

function cpuCopyMover({ bounce, destination }: MoverOptions): PageMover {
  const to = destination.view();
  return {
    move: (_slot, block) =>
      forEachPage(block, bounce, destination, (source, bytes, offset) => {
        to.set(bounce.bytes.subarray(source, source + bytes), offset);
      }),
    whenFree: () => Promise.resolve(),
    [Symbol.asyncDispose]: () => Promise.resolve(),
  };
}

/** Source offsets count from the beginning of the ring. Fails with WL_INVALID_ARGUMENT before a page outside is moved. */
function forEachPage(
  block: DescriptorBlock,
  bounce: Bounce,
  destination: MemorySpan,
  copy: (source: number, bytes: number, offset: number) => void,
): void {
  const { words, count } = block;
  const start = wideAt(words, blockHeaderWord.bounce) - bounce.address;
  for (let index = 0; index < count; index++) {
    const at = BLOCK_HEADER_WORDS + index * FRAGMENT_WORDS;
    const source = start + words[at + fragmentWord.sourceOffset]!;
    const bytes = words[at + fragmentWord.length]!;
    const offset = wideAt(words, at + fragmentWord.destinationOffset);
    if (source + bytes > bounce.bytes.length || offset + bytes > destination.bytes) {
      throw invalidArgument(
        `descriptor ${index} of a chunk`,
        [source, bytes, offset],
        'a range of the ring and of the destination',
      );
    }
    copy(source, bytes, offset);
  }
}
