// The phases of a transport bench between two processes: the client says which, both do their side of it.
import { WeftlineError } from '../../../core/errors.ts';
import { monotonicMicroseconds } from '../harness.ts';
import { quantile } from '../../../core/quantile.ts';
import { type BareStream, BareUdp } from './bare-udp.ts';
import { IperfServer, runIperf } from '../peer-programs.ts';
import { type ThroughputResult, runExchange, type SecondOfExchange } from './transport-exchange.ts';
import { type BenchSession, openBuffers, BASIC_BYTES, type TransportWorkload } from './transport-session.ts';
import { packetSpinUs } from '../../../threads/spin-time.ts';

/** What the client says before each phase. */
export type Phase =
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

export interface PhaseOptions {
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
export async function servePhases(session: BenchSession, options: PhaseOptions): Promise<void> {
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

export async function runBasic(session: BenchSession, iterations: number, { onLine }: PhaseOptions): Promise<void> {
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
export async function runLatency(session: BenchSession, run: LatencyRun): Promise<readonly number[]> {
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
export async function runThroughput(
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

export function secondLine({ nflow }: TransportWorkload, { sent, received, seconds }: SecondOfExchange): string {
  const show = ({ bytes, messages }: { bytes: number; messages: number }): string =>
    `${((bytes * 8) / seconds / 1e9).toFixed(2)} Gbps(${messages})`;
  return `(${nflow} flows) TX Tpt: ${show(sent)}, RX Tpt: ${show(received)}`;
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
export async function runBareThroughput(
  session: BenchSession,
  stream: BareStream,
  options: PhaseOptions,
): Promise<number> {
  using bare = await meetBare(session, options, { phase: 'bareTpt', stream });
  const { microseconds } = bare.send(stream);
  const { bytes } = await session.hear<{ bytes: number }>();
  return (bytes * 8) / microseconds / 1000;
}

export async function runBareLatency(
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
  const server = await IperfServer.start(host);
  await session.say({ port: server?.port ?? 0 });
  await session.hear();
  server?.stop();
  return {};
}

/** Gbps of TCP between the two hosts; undefined where iperf3 is missing. */
export async function runTcp(
  session: BenchSession,
  seconds: number,
  options: PhaseOptions,
): Promise<number | undefined> {
  await session.say({ phase: 'iperf' } satisfies Phase);
  const { port } = await session.hear<{ port: number }>();
  const gbps = port === 0 ? undefined : await runIperf(options.peerHost, port, seconds);
  await session.say({});
  await session.hear();
  return gbps;
}

/** Share of one core that this process uses while nothing happens. */
export async function measureIdle(seconds: number): Promise<number> {
  // What the phase before has left behind comes first.
  await new Promise((resolve) => setTimeout(resolve, 200));
  const begin = monotonicMicroseconds();
  const cpu = process.cpuUsage();
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  const used = process.cpuUsage(cpu);
  return (used.user + used.system) / (monotonicMicroseconds() - begin);
}

/** Min, P50, P90, P99, P99.9 and max. */
export const latencyQuantiles = ['min', 'P50', 'P90', 'P99', 'P99.9', 'max'] as const;

export function quantilesOf(times: readonly number[]): number[] {
  const counted = times.toSorted((a, b) => a - b);
  return [0, 0.5, 0.9, 0.99, 0.999, 1].map((share) => (counted.length === 0 ? 0 : quantile(counted, share)));
}
