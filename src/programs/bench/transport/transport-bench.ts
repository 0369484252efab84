// The transport bench between two processes: the client decides and reports, the server does its part and ends by itself.
import { asWeftlineError, WeftlineError } from '../../../core/errors.ts';
import { type Connection, Transport } from '../../../transport/index.ts';
import { segmentsPerSend, type BareStream, BareUdp } from './bare-udp.ts';
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
  openBuffers,
} from './transport-session.ts';
import { monotonicMicroseconds, summarizeRatios, quantilesOf } from '../harness.ts';
import { startIperf, runIperf } from '../peer-programs.ts';
import { runExchange, secondLine, type SecondOfExchange, type ThroughputResult } from './transport-exchange.ts';
import { packetSpinUs } from '../../../threads/spin-time.ts';

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
/** What all paths of the connection have done from its beginning on. */
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
    /** The paths of this side at the beginning, each second and at the end of every round of tpt and bi. */
    pathsOverTime,
    /** The transport's own counters at the end, of this side. */
    statistics,
  };
}

interface Measured {
  /** Messages of basic every word of which was checked by the receiver. */
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
    /** Seconds since the bench began. */
    seconds: (monotonicMicroseconds() - begin) / 1e6,
    paths: paths.map(({ sentSegments, lostSegments, smoothedRtt }) => ({ sentSegments, lostSegments, smoothedRtt })),
  };
}

// The phases of the bench: the client says which, both do their side of it.

/** What the client says before each phase. */
type Phase =
  | { readonly phase: 'basic'; readonly iterations: number }
  | ({ readonly phase: 'lat' } & LatencyRun)
  | { readonly phase: 'tpt'; readonly workload: TransportWorkload }
  | BareLatency
  | BareThroughput
  | { readonly phase: 'iperf' }
  | { readonly phase: 'idle'; readonly seconds: number }
  | { readonly phase: 'end' };

type BareLatency = LatencyRun & { readonly phase: 'bareLat'; readonly port: number };
type BareThroughput = { readonly phase: 'bareTpt'; readonly stream: BareStream; readonly port: number };

interface LatencyRun {
  readonly rounds: number;
  readonly bytes: number;
}

interface PhaseOptions {
  /** A line to show. */
  readonly onLine: (line: string) => void;
  /** Each second of a run with throughput. */
  readonly onSecond?: () => void;
  /** Numeric addresses of this side and of the peer. */
  readonly host: string;
  readonly peerHost: string;
}

const BASIC_WORD = 0x123456;
/** The bare ping-pong never sleeps between two datagrams: what the transport is compared with is the best there is. */
const PING_PONG_SPIN_US = 1_000_000;

/** The server's side: does what the client says until that says `end`. */
async function servePhases(session: BenchSession, options: PhaseOptions): Promise<void> {
  for (;;) {
    const phase = await session.hear<Phase>();
    if (phase.phase === 'end') return;
    await session.say(await serve(session, phase, options));
  }
}

/** What the server answers after the phase. */
async function serve(
  session: BenchSession,
  phase: Exclude<Phase, { phase: 'end' }>,
  options: PhaseOptions,
): Promise<unknown> {
  switch (phase.phase) {
    case 'basic':
      return serveBasic(session, phase.iterations, options);
    case 'lat':
      return serveLatency(session, phase);
    case 'tpt':
      return serveThroughput(session, phase.workload, options);
    case 'bareLat':
    case 'bareTpt':
      return serveBare(session, phase, options);
    case 'iperf':
      return serveIperf(session, options);
    case 'idle':
      return measureIdle(phase.seconds);
    default:
      return phase satisfies never;
  }
}

async function serveBasic(session: BenchSession, iterations: number, { onLine }: PhaseOptions): Promise<unknown> {
  const { transport, connection } = session;
  await using buffers = await openBuffers(transport, 1, BASIC_BYTES);
  const { region } = buffers;
  const words = new Uint32Array(region.bytes.buffer, 0, BASIC_BYTES / 4);
  for (let iteration = 0; iteration < iterations; iteration += 1) {
    words.fill(0);
    const bytes = await transport.wait(connection.receive({ region, bytes: BASIC_BYTES }));
    const wrong = words.findIndex((word) => word !== BASIC_WORD);
    if (bytes !== BASIC_BYTES || wrong !== -1) {
      throw new WeftlineError('WL_CHECK', `Message ${iteration} came with ${bytes} bytes, and word ${wrong} is wrong`);
    }
    onLine(`Server iteration ${iteration} done`);
  }
  return { iterations };
}

async function runBasic(session: BenchSession, iterations: number, { onLine }: PhaseOptions): Promise<void> {
  const { transport, connection } = session;
  await session.say({ phase: 'basic', iterations } satisfies Phase);
  await using buffers = await openBuffers(transport, 1, BASIC_BYTES);
  const { region } = buffers;
  new Uint32Array(region.bytes.buffer, 0, BASIC_BYTES / 4).fill(BASIC_WORD);
  for (let iteration = 0; iteration < iterations; iteration += 1) {
    await transport.wait(connection.send({ region, bytes: BASIC_BYTES }));
    onLine(`Client iteration ${iteration} done`);
  }
  await session.hear();
}

/** One message under way; each round from the offer of memory to the end of the receive, so the offer's way is in it. */
async function serveLatency(session: BenchSession, { rounds, bytes }: LatencyRun): Promise<readonly number[]> {
  const { transport, connection } = session;
  await using buffers = await openBuffers(transport, 1, bytes);
  const { region } = buffers;
  const times: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const begin = monotonicMicroseconds();
    transport.waitBlocking(connection.receive({ region, bytes }));
    times.push(monotonicMicroseconds() - begin);
  }
  return quantilesOf(times);
}

/** Returns what the server measured. */
async function runLatency(session: BenchSession, run: LatencyRun): Promise<readonly number[]> {
  const { transport, connection } = session;
  const { rounds, bytes } = run;
  await session.say({ phase: 'lat', ...run } satisfies Phase);
  await using buffers = await openBuffers(transport, 1, bytes);
  const { region } = buffers;
  for (let round = 0; round < rounds; round += 1) transport.waitBlocking(connection.send({ region, bytes }));
  return session.hear();
}

async function serveThroughput(
  session: BenchSession,
  workload: TransportWorkload,
  { onLine }: PhaseOptions,
): Promise<ThroughputResult> {
  const outgoing = workload.bi ? [session] : [];
  const onSecond = (second: SecondOfExchange): void => onLine(secondLine(workload, second));
  const result = await runExchange({ transport: session.transport, workload, outgoing, incoming: [session], onSecond });
  const { messages, gbps } = result.received;
  onLine(`Server: received ${messages} messages of ${workload.msize} bytes, ${gbps.toFixed(2)} Gbps`);
  // Times are the sender's matter; thousands of them do not fit a word.
  return { ...result, times: [] };
}

/** Both sides' results. */
async function runThroughput(
  session: BenchSession,
  workload: TransportWorkload,
  { onLine, onSecond: alsoOnSecond }: PhaseOptions,
): Promise<{ readonly client: ThroughputResult; readonly server: ThroughputResult }> {
  await session.say({ phase: 'tpt', workload } satisfies Phase);
  const incoming = workload.bi ? [session] : [];
  const onSecond = (second: SecondOfExchange): void => {
    onLine(secondLine(workload, second));
    alsoOnSecond?.();
  };
  const client = await runExchange({ transport: session.transport, workload, outgoing: [session], incoming, onSecond });
  return { client, server: await session.hear() };
}

async function serveBare(
  session: BenchSession,
  phase: BareLatency | BareThroughput,
  options: PhaseOptions,
): Promise<unknown> {
  using bare = openBare(session, options, phase);
  bare.connect(options.peerHost, phase.port);
  await session.say({ port: bare.port });
  await session.settle();
  if (phase.phase === 'bareLat') bare.answer(phase.rounds);
  else return { bytes: bare.receive() };
  return {};
}

/** Begins a phase of bare UDP at both sides. */
async function meetBare(
  session: BenchSession,
  options: PhaseOptions,
  phase: Omit<BareLatency, 'port'> | Omit<BareThroughput, 'port'>,
): Promise<BareUdp> {
  const bare = openBare(session, options, phase);
  await session.say({ ...phase, port: bare.port });
  const { port } = await session.hear<{ port: number }>();
  bare.connect(options.peerHost, port);
  await session.settle();
  return bare;
}

/** Gbps. */
async function runBareThroughput(session: BenchSession, stream: BareStream, options: PhaseOptions): Promise<number> {
  using bare = await meetBare(session, options, { phase: 'bareTpt', stream });
  const { microseconds } = bare.send(stream);
  const { bytes } = await session.hear<{ bytes: number }>();
  return (bytes * 8) / microseconds / 1000;
}

async function runBareLatency(
  session: BenchSession,
  rounds: number,
  bytes: number,
  options: PhaseOptions,
): Promise<readonly number[]> {
  using bare = await meetBare(session, options, { phase: 'bareLat', rounds, bytes });
  const times = bare.ask(rounds, bytes);
  await session.hear();
  return quantilesOf([...times]);
}

function openBare({ transport }: BenchSession, { host }: PhaseOptions, { phase }: Pick<Phase, 'phase'>): BareUdp {
  const { settings } = transport;
  const spinUs = phase === 'bareLat' ? PING_PONG_SPIN_US : packetSpinUs(settings);
  return new BareUdp({ host, bufferBytes: settings.transportSocketBufferBytes, spinUs });
}

async function serveIperf(session: BenchSession, { host }: PhaseOptions): Promise<unknown> {
  const server = await startIperf(host);
  await session.say({ port: server?.port ?? 0 });
  await session.hear();
  server?.stop();
  return {};
}

/** Gbps of TCP between the two hosts; undefined where iperf3 is missing. */
async function runTcp(session: BenchSession, seconds: number, options: PhaseOptions): Promise<number | undefined> {
  await session.say({ phase: 'iperf' } satisfies Phase);
  const { port } = await session.hear<{ port: number }>();
  const gbps = port === 0 ? undefined : await runIperf(options.peerHost, port, seconds);
  await session.say({});
  await session.hear();
  return gbps;
}

/** Share of one core that this process uses while nothing happens. */
async function measureIdle(seconds: number): Promise<number> {
  // What the phase before has left behind comes first.
  await new Promise((resolve) => setTimeout(resolve, 200));
  const begin = monotonicMicroseconds();
  const cpu = process.cpuUsage();
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  const used = process.cpuUsage(cpu);
  return (used.user + used.system) / (monotonicMicroseconds() - begin);
}
