// The receiving end of the unpack bench: chunks land in a pinned ring and their pages go to their places on the device.
import { alignUp } from '../../../../abi/layout.ts';
import { WeftlineError } from '../../../../core/errors.ts';
import type { CpuDevice } from '../../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../../device/tensor.ts';
import type { Settings } from '../../../../settings/settings.ts';
import { type Connection, type MemoryRegion, Transport } from '../../../../transport/index.ts';
import { DescriptorBlock } from '../../../../unpack/index.ts';
import { BenchSession } from '../../transport/transport-session.ts';
import { type Bounce, createMover, type PageMover } from './page-movers.ts';
import {
  checkRoadPlan,
  descriptorBytes,
  expectedWord,
  fragmentsPerChunk,
  messageBytes,
  readDescriptors,
  ROAD_DEPTH,
  type RoadPlan,
} from './road-plan.ts';

export interface RoadServerOptions {
  readonly host: string;
  readonly port: number;
  readonly device: CpuDevice | CudaDevice;
  /** How pages are moved. */
  readonly mode: Settings['unpack'];
  readonly onLine: (text: string) => void;
  readonly onListening: (port: number) => void;
}

/** What the server tells when all is received, moved and verified. */
export interface RoadOutcome {
  readonly device: string;
  readonly mode: Settings['unpack'];
  /** Of each iteration, from the first receive posted to the last page in its place. */
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
  await using ring = await registerRing(transport, memory.bounce.bytes);
  const { region } = ring;
  await using mover = await createMover(mode, { device, bounce: memory.bounce, destination });
  const road: EndToEnd = { connection, transport, plan, stride, bounce: memory.bounce, destination, region, mover };
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
  return { region, [Symbol.asyncDispose]: () => transport.release(region) };
}

interface EndToEnd {
  readonly connection: Connection;
  readonly transport: Transport;
  readonly plan: RoadPlan;
  /** From one slot of the ring to the next. */
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
  return { bounce, [Symbol.dispose]: () => tensor.dispose() };
}
