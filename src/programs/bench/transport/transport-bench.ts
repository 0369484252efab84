// The transport bench between two processes: the client decides and reports, the server does its part and ends by itself.
import { asWeftlineError } from '../../../core/errors.ts';
import { readSettings } from '../../../settings/settings.ts';
import { type Connection, Transport } from '../../../transport/index.ts';
import { segmentsPerSend } from './bare-udp.ts';
import { loadAverage, machineDocument } from '../machine.ts';
import { samplePlacement } from '../machine.ts';
import { failureWord, decodePeerFailure } from '../peer-failure.ts';
import { summarizeRatios } from '../harness.ts';
import {
  measureIdle,
  type Phase,
  type PhaseOptions,
  quantilesOf,
  runBareLatency,
  runBareThroughput,
  runBasic,
  runLatency,
  runTcp,
  runThroughput,
  servePhases,
} from './transport-phases.ts';
import {
  type Comparison,
  type LatencyResult,
  type ThroughputResult,
  type TransportBenchReport,
  transportMethod,
} from './transport-results.ts';
import { BenchSession } from './transport-session.ts';
import {
  BASIC_BYTES,
  BASIC_ITERATIONS,
  LATENCY_ITERATIONS,
  LATENCY_WARMUP,
  type TransportWorkload,
} from './transport-workload.ts';
import { PathSamples } from './path-samples.ts';

export interface ServerOptions {
  /** A numeric address of this host, or 0.0.0.0 for all. */
  readonly host: string;
  readonly port: number;
  readonly onLine: (line: string) => void;
  /** Called with the port once a client may come. */
  readonly onListening?: (port: number) => void;
}

export interface ClientOptions {
  readonly host: string;
  readonly port: number;
  readonly workload: TransportWorkload;
  /** Rounds of the comparison with bare UDP and TCP; 0 for none. */
  readonly rounds: number;
  readonly onLine: (line: string) => void;
}

/** How long a client that gives up waits for the server that it tells. */
const GIVE_UP_MS = 3000;

/**
 * Serves one client. Fails with WL_TIMEOUT if none comes within the setting `timeoutMs`, and with the client's own error if
 * that gave up.
 */
export async function serveTransportBench({ host, port, onLine, onListening }: ServerOptions): Promise<void> {
  await using transport = await Transport.create({ name: 'the bench server' });
  const givenUp = new AbortController();
  const receive = (hello: unknown): { readonly answer: undefined } => {
    const failure = decodePeerFailure(hello, 'the bench client');
    if (failure === undefined) return { answer: undefined };
    givenUp.abort(failure);
    throw failure;
  };
  const listener = await transport.listen({ host, port }, { receive });
  onListening?.(listener.port);
  const accepted = listener.accept({ timeoutMs: transport.settings.timeoutMs });
  const connection = await Promise.race([accepted, failureOf(givenUp.signal)]);
  listener.close();
  onLine(`Server: ${connection.peerName} at ${connection.peerHost} connected, ${describe(connection)}`);
  const session = await BenchSession.open(transport, connection);
  const options: PhaseOptions = { onLine, host: connection.localHost, peerHost: connection.peerHost };
  await session.run(() => servePhases(session, options));
  await session.settle();
}

function failureOf(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => signal.addEventListener('abort', () => reject(asWeftlineError(signal.reason))));
}

/** Tells a server that its client gives up before anything is measured, and why. Never throws: it may not be there. */
export async function giveUpTransportBench(address: Pick<ClientOptions, 'host' | 'port'>, why: unknown): Promise<void> {
  try {
    await using transport = await Transport.create({ name: 'the bench client' });
    await transport.connect(address, { hello: failureWord(why), timeoutMs: GIVE_UP_MS });
  } catch {
    // The server refuses a client that gives up, or nobody listens.
  }
}

export async function runTransportBench(options: ClientOptions): Promise<TransportBenchReport> {
  const { workload, onLine } = options;
  await using transport = await Transport.create({ name: 'the bench client' });
  const { host, port } = options;
  onLine(`connecting to ${host} port ${port}, for at most ${transport.settings.timeoutMs / 1000} s`);
  const connection = await transport.connect({ host, port });
  onLine(`Client connected to ${host} (${workload.nflow} flows over one connection)`);
  onLine(describe(connection));
  const session = await BenchSession.open(transport, connection);
  return await session.run(() => measureAll(session, options));
}

async function measureAll(session: BenchSession, options: ClientOptions): Promise<TransportBenchReport> {
  const { workload, onLine } = options;
  const { connection } = session;
  const samples = new PathSamples(connection);
  const phases: PhaseOptions = {
    onLine,
    onSecond: samples.take,
    host: connection.localHost,
    peerHost: connection.peerHost,
  };
  const placementBefore = await samplePlacement();
  const loadBefore = loadAverage();
  const results = await measure(session, options, phases);
  const loadAfter = loadAverage();
  const placementAfter = await samplePlacement();
  const pathsOverTime = await samples.all();
  const statistics = await connection.statistics();
  await session.say({ phase: 'end' } satisfies Phase);
  return {
    schema: 'weftline.bench.transport/1',
    date: new Date().toISOString(),
    method: transportMethod,
    workload,
    segmentBytes: connection.segmentBytes,
    paths: connection.paths,
    segmentsPerSend: cutsOf(connection),
    machine: machineDocument(),
    settings: readSettings(),
    loadAverage: { before: loadBefore, after: loadAfter },
    placement: { before: placementBefore, after: placementAfter },
    ...results,
    pathsOverTime,
    statistics,
  };
}

type Measured = Pick<TransportBenchReport, 'intact' | 'throughput' | 'comparison' | 'latency' | 'idle'>;

async function measure(session: BenchSession, options: ClientOptions, phases: PhaseOptions): Promise<Measured> {
  const { workload, rounds } = options;
  if (workload.perftype === 'basic') {
    const messages = workload.iterations || BASIC_ITERATIONS;
    await runBasic(session, { iterations: messages }, phases);
    return { intact: { messages, bytes: BASIC_BYTES } };
  }
  if (workload.perftype === 'lat') return { latency: await latency(session, options, phases) };
  if (workload.warmup) await runThroughput(session, { ...workload, iterations: 0, seconds: 1 }, quiet(phases));
  const throughputs = new ThroughputRounds();
  const bareGbps: number[] = [];
  const tcpGbps: number[] = [];
  for (let round = 0; round < Math.max(1, rounds); round += 1) {
    phases.onSecond?.();
    throughputs.add(await runThroughput(session, workload, phases));
    phases.onSecond?.();
    if (rounds === 0) continue;
    const seconds = Math.max(1, Math.round(workload.seconds));
    const { segmentBytes } = session.connection;
    bareGbps.push(
      await runBareThroughput(session, { segmentBytes, segments: cutsOf(session.connection), seconds }, phases),
    );
    const tcp = await runTcp(session, seconds, phases);
    if (tcp !== undefined) tcpGbps.push(tcp);
  }
  const throughput = throughputs.result(workload);
  return {
    throughput,
    ...(rounds === 0 ? {} : { comparison: compare(throughput.gbps, bareGbps, tcpGbps) }),
    idle: await idle(session),
  };
}

async function latency(session: BenchSession, options: ClientOptions, phases: PhaseOptions): Promise<LatencyResult> {
  const { workload, rounds: compared } = options;
  const { msize } = workload;
  if (workload.warmup) await runLatency(session, { rounds: LATENCY_WARMUP, bytes: msize });
  const rounds = workload.iterations || LATENCY_ITERATIONS;
  const transport = await runLatency(session, { rounds, bytes: msize });
  if (compared === 0) return { transport, bareRoundTrip: undefined, ratioOfMedians: undefined };
  const bareRoundTrip = await runBareLatency(session, LATENCY_ITERATIONS, msize, phases);
  return { transport, bareRoundTrip, ratioOfMedians: (transport[1] as number) / (bareRoundTrip[1] as number) };
}

/** Both sides at once. */
async function idle(session: BenchSession): Promise<{ readonly client: number; readonly server: number }> {
  await session.say({ phase: 'idle', seconds: 1 } satisfies Phase);
  const client = await measureIdle(1);
  return { client, server: await session.hear() };
}

function compare(gbps: readonly number[], bareGbps: readonly number[], tcpGbps: readonly number[]): Comparison {
  return {
    bareGbps,
    tcpGbps,
    ratioToBare: summarizeRatios(gbps, bareGbps),
    ratioToTcp: tcpGbps.length === gbps.length ? summarizeRatios(gbps, tcpGbps) : undefined,
  };
}

/** Collects what the rounds of a throughput run gave. */
class ThroughputRounds {
  readonly #gbps: number[] = [];
  readonly #receivedGbps: number[] = [];
  readonly #times: number[] = [];
  #messages = 0;
  #gigabytes = 0;
  #senderCpu = 0;
  #receiverCpu = 0;

  add({ client, server }: Awaited<ReturnType<typeof runThroughput>>): void {
    this.#gbps.push(client.sent.gbps);
    this.#receivedGbps.push(server.sent.gbps);
    for (const time of client.times) this.#times.push(time);
    this.#messages += client.sent.messages;
    this.#gigabytes += (client.sent.bytes + client.received.bytes) / 1e9;
    this.#senderCpu += client.cpuSeconds;
    this.#receiverCpu += server.cpuSeconds;
  }

  result({ bi }: TransportWorkload): ThroughputResult {
    return {
      gbps: this.#gbps,
      ...(bi ? { receivedGbps: this.#receivedGbps } : {}),
      messages: this.#messages,
      requestMicroseconds: quantilesOf(this.#times),
      senderCpuSecondsPerGB: this.#senderCpu / this.#gigabytes,
      receiverCpuSecondsPerGB: this.#receiverCpu / this.#gigabytes,
    };
  }
}

function cutsOf({ cutsSends, segmentBytes }: Connection): number {
  return cutsSends ? segmentsPerSend(segmentBytes) : 1;
}

function describe(connection: Connection): string {
  const cuts = cutsOf(connection);
  const sends = cuts > 1 ? `up to ${cuts} in one send` : 'each in a send of its own';
  return `${connection.paths} paths, packets of ${connection.segmentBytes} bytes, ${sends}`;
}

function quiet(phases: PhaseOptions): PhaseOptions {
  return { ...phases, onLine: () => {} };
}
