// The transport bench between two processes: the client decides and reports, the server does its part and ends by itself.
import { asWeftlineError } from '../../../core/errors.ts';
import { type Connection, Transport } from '../../../transport/index.ts';
import { segmentsPerSend } from './bare-udp.ts';
import { recordRun } from '../machine.ts';
import {
  failureWord,
  decodePeerFailure,
  BenchSession,
  BASIC_BYTES,
  BASIC_ITERATIONS,
  LATENCY_ITERATIONS,
  LATENCY_WARMUP,
  type TransportWorkload,
} from './transport-session.ts';
import { monotonicMicroseconds, summarizeRatios } from '../harness.ts';
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

/** Written into every document, so that a number can be read without this source. */
const method = {
  goodput: 'Bytes of messages that arrived, times 8, over the time from the first post to the last end at the sender.',
  latency:
    'One message under way. From the offer of memory by the receiver to the end of its receive, so that the way of the offer is in it: comparable to a round trip.',
  request: 'From posting the messages of a request to the end of the last of them, at the sender.',
  bare: 'The same system calls without a protocol: same datagrams, same number per send, headers and payload apart, a window of 2 MiB, nothing is placed or checked. The ping-pong polls and never sleeps.',
  tcp: 'iperf3 with one connection and writes of 1 MiB, what its receiver counted.',
  interleaved: 'Sides of one round follow each other within seconds; ratios are taken within a round.',
  cpu: 'User and system time of all threads of the process, over the bytes of messages.',
  idle: 'Share of one core that the process uses while it is connected and nothing happens.',
} as const;

export type TransportBenchReport = Awaited<ReturnType<typeof measureAll>>;
/** Of all paths of the connection, from its beginning on. */
export type PathsAt = Awaited<ReturnType<typeof pathsNow>>;

interface ServerOptions {
  /** A numeric address of this host, or 0.0.0.0 for all. */
  readonly host: string;
  readonly port: number;
  readonly onLine: (line: string) => void;
  /** Called with the port once a client may come. */
  readonly onListening?: (port: number) => void;
}

interface ClientOptions {
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

async function measureAll(session: BenchSession, options: ClientOptions) {
  const { workload, onLine } = options;
  const { connection } = session;
  const begin = monotonicMicroseconds();
  const asked: Promise<PathsAt>[] = [];
  const onSecond = (): void => void asked.push(pathsNow(connection, begin));
  const { localHost: host, peerHost } = connection;
  const phases: PhaseOptions = { onLine, onSecond, host, peerHost };
  const { segmentBytes, paths } = connection;
  const schema = 'weftline.bench.transport/1' as const;
  const head = { schema, method, workload, segmentBytes, paths, segmentsPerSend: cutsOf(connection) };
  const document = await recordRun(undefined, head, () => measure(session, options, phases));
  // Fails with what the connection failed with.
  const pathsOverTime = await Promise.all(asked);
  const statistics: unknown = await connection.statistics();
  await session.say({ phase: 'end' } satisfies Phase);
  return {
    ...document,
    /** At the beginning, each second and at the end of every round of tpt and bi; of this side. */
    pathsOverTime,
    /** The transport's own counters at the end, of this side. */
    statistics,
  };
}

interface Measured {
  /** Of basic: messages every word of which was checked by the receiver. */
  readonly intact?: { readonly messages: number; readonly bytes: number };
  readonly throughput?: ReturnType<typeof throughputOf>;
  readonly comparison?: ReturnType<typeof compare>;
  readonly latency?: Awaited<ReturnType<typeof latency>>;
  /** Shares of one core; of this side and of the server. */
  readonly idle?: { readonly client: number; readonly server: number };
}

async function measure(session: BenchSession, options: ClientOptions, phases: PhaseOptions): Promise<Measured> {
  const { workload, rounds } = options;
  if (workload.perftype === 'basic') {
    const messages = workload.iterations || BASIC_ITERATIONS;
    await runBasic(session, messages, phases);
    return { intact: { messages, bytes: BASIC_BYTES } };
  }
  if (workload.perftype === 'lat') return { latency: await latency(session, options, phases) };
  if (workload.warmup) await runThroughput(session, { ...workload, iterations: 0, seconds: 1 }, quiet(phases));
  const runs = [];
  const bareGbps: number[] = [];
  const tcpGbps: number[] = [];
  for (let round = 0; round < Math.max(1, rounds); round += 1) {
    phases.onSecond?.();
    runs.push(await runThroughput(session, workload, phases));
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
  const throughput = throughputOf(runs, workload);
  return {
    throughput,
    ...(rounds > 0 && { comparison: compare(throughput.gbps, bareGbps, tcpGbps) }),
    idle: await idle(session),
  };
}

/** Microseconds in the order of latencyQuantiles. */
async function latency(session: BenchSession, options: ClientOptions, phases: PhaseOptions) {
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

function compare(gbps: readonly number[], bareGbps: readonly number[], tcpGbps: readonly number[]) {
  return {
    bareGbps,
    tcpGbps,
    ratioToBare: summarizeRatios(gbps, bareGbps),
    /** undefined where iperf3 is missing. */
    ratioToTcp: tcpGbps.length === gbps.length ? summarizeRatios(gbps, tcpGbps) : undefined,
  };
}

type ThroughputRun = Awaited<ReturnType<typeof runThroughput>>;

function throughputOf(runs: readonly ThroughputRun[], { bi }: TransportWorkload) {
  const total = (of: (run: ThroughputRun) => number): number => runs.reduce((sum, run) => sum + of(run), 0);
  const gigabytes = total(({ client }) => client.sent.bytes + client.received.bytes) / 1e9;
  return {
    /** Gbps of each round. */
    gbps: runs.map(({ client }) => client.sent.gbps),
    /** What this side received, in runs in both directions. */
    ...(bi && { receivedGbps: runs.map(({ server }) => server.sent.gbps) }),
    messages: total(({ client }) => client.sent.messages),
    requestMicroseconds: quantilesOf(runs.flatMap(({ client }) => client.times)),
    senderCpuSecondsPerGB: total(({ client }) => client.cpuSeconds) / gigabytes,
    receiverCpuSecondsPerGB: total(({ server }) => server.cpuSeconds) / gigabytes,
  };
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

/** What the paths of the connection have sent; the engines are asked, which answer between their packets. */
async function pathsNow(connection: Connection, begin: number) {
  const { paths } = (await connection.statistics()).connection;
  return {
    /** Since the bench began. */
    seconds: (monotonicMicroseconds() - begin) / 1e6,
    paths: paths.map(({ sentSegments, lostSegments, smoothedRtt }) => ({ sentSegments, lostSegments, smoothedRtt })),
  };
}
