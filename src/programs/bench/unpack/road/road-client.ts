// The sending end of the unpack bench: chunks of pages whose places are scattered over the server's memory.
import { Transport } from '../../../../transport/index.ts';
import { type MachineDocument, machineDocument } from '../../machine.ts';
import { type Summary, summarize } from '../../statistics.ts';
import { BenchSession, openBuffers } from '../../transport/transport-session.ts';
import {
  checkRoadPlan,
  descriptorBytes,
  expectedWord,
  fragmentsPerChunk,
  messageBytes,
  ROAD_DEPTH,
  type RoadPlan,
  roadPlaces,
  writeDescriptors,
} from './road-plan.ts';
import type { RoadOutcome } from './road-server.ts';

export interface RoadReport extends Omit<RoadOutcome, 'microseconds'> {
  readonly schema: 'weftline.bench.unpack-road/1';
  readonly date: string;
  readonly plan: RoadPlan;
  readonly microseconds: Summary;
  /** Of payload, median. */
  readonly gigabytesPerSecond: number;
  readonly machine: MachineDocument;
}

export interface RoadClientOptions {
  readonly host: string;
  readonly port: number;
  readonly plan: RoadPlan;
  readonly onLine: (text: string) => void;
}

/** Returns what the server measured. Fails with what the server fails with. */
export async function runRoad({ host, port, plan, onLine }: RoadClientOptions): Promise<RoadReport> {
  checkRoadPlan(plan);
  await using transport = await Transport.create({ name: 'the unpack client' });
  const connection = await transport.connect({ host, port });
  onLine(`Client connected to ${host}`);
  const session = await BenchSession.open(transport, connection);
  const { microseconds, ...outcome } = await session.run(() => sendAll(session, plan));
  const times = summarize(microseconds);
  return {
    schema: 'weftline.bench.unpack-road/1',
    date: new Date().toISOString(),
    ...outcome,
    plan,
    microseconds: times,
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
