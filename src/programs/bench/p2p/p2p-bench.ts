// The P2P bench between two processes: the server offers its memory, the client moves, measures and reports.
import { type BackendName, type BackendVerdict, Endpoint, type EndpointConnection } from '../../../agent/index.ts';
import type { ControlChannel } from '../../../meeting/control-channel.ts';
import { isUnspecified } from '../../../meeting/route.ts';
import { recordRun } from '../machine.ts';
import { checkCeilings, runCeilings, runPingCeiling } from './p2p-ceilings.ts';
import {
  type BlockResult,
  MEMORY_NAMES,
  type P2pPhase,
  runBlocks,
  runDescriptors,
  runPings,
  runSize,
  serveP2pPhases,
  type SizeResult,
  hearWord,
  P2pSession,
  sayWord,
  memoryOf,
  type P2pWorkload,
} from './p2p-phases.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { Deadline } from '../../../core/deadline.ts';
import { credentialsOf } from '../../../meeting/credentials.ts';
import { call } from '../../../meeting/dial.ts';
import { type HelloBody, type HelloOptions, receiveHello } from '../../../meeting/hello.ts';
import { MeetingListener } from '../../../meeting/listener.ts';
import { readSettings, readToken } from '../../../settings/settings.ts';
import { failureWord, decodePeerFailure } from '../transport/transport-session.ts';

/** Written into every document, so that a number can be read without this source. */
const method = {
  size: 'Bytes of all messages over the time from the first post to the last end, at the client; of mode send the server measures what it receives by itself. Units of 1e9.',
  block:
    'One transfer of a batch of blocks, posted again and again, one under way: transfer from post to done, post the call alone, preparation with connection and peer known.',
  descriptors:
    'One transfer of blocks of 64 bytes, 128 apart, in no order, with connection and peer known: lists is DescriptorList.blocks and select of both sides, prepare the call alone, move from post to done; memory is what the process grew by over both, the lists included.',
  ping: 'A write of 256 bytes with a notification there, and the same back; both processes wait blocking.',
  memcpy:
    'The C library copies as many bytes from the same source to memory of the same kind in the same process, message by message in turn with the path, after 20,000 small messages of each and a round that does not count; the median of each round counts.',
  transport: 'bench transport --perftype tpt between the same processes, with its usual 4 flows of 2 requests.',
  ucx_perftest:
    'ucx_perftest of UCX between the same hosts with the same size and as many messages under way: ucp_put_bw for writes and ucp_get for reads, over all its messages; round trips beside twice the median of tag_lat, which measures one way.',
  host: 'Transfers of the same size between host memory of the same processes over the same path, as many under way.',
  interleaved: 'Sides of one round follow each other; ratios are taken within a round.',
} as const;

export type P2pBenchReport = Awaited<ReturnType<typeof runP2pBench>>;

export interface P2pBenchOptions {
  readonly localGpuIndex: number;
  readonly device: 'cpu' | 'gpu';
  /** Both sides must have it; undefined: the agent chooses. */
  readonly backend: BackendName | undefined;
  /** False: on the caller's thread alone, as `Agent.create` says. */
  readonly ownThread: boolean;
  /** TCP port at which the server is called. */
  readonly port: number;
}

interface P2pServerOptions extends P2pBenchOptions {
  /** A numeric address of this host, or 0.0.0.0 for all: the endpoint is then at the address that the client calls. */
  readonly host: string;
  readonly onListening: (port: number) => void;
  /** `workload` is the client's, which decides. */
  readonly onConnected: (connection: EndpointConnection, workload: P2pWorkload) => void;
  /** What this side has measured itself: messages that it received. */
  readonly onSize: (result: SizeResult) => void;
  /** What only the client can measure, because this side does nothing for it. */
  readonly onOneSided: (size: { readonly bytes: number; readonly iterations: number }) => void;
}

/** How a client meets its server. */
export interface P2pSessionOptions extends P2pBenchOptions {
  readonly remoteIp: string;
  /** The address at which the server reaches this side; the one from which it calls the server by default. */
  readonly host?: string | undefined;
  /** `verdicts`: why the connection did not get other backends. */
  readonly onConnected: (connection: EndpointConnection, verdicts: readonly BackendVerdict[]) => void;
}

interface P2pClientOptions extends P2pSessionOptions {
  readonly workload: P2pWorkload;
  readonly onSize: (result: SizeResult) => void;
  readonly onBlock: (result: BlockResult) => void;
}

/** Serves one client. Fails with WL_TIMEOUT if none comes within the setting `timeoutMs`. */
export async function serveP2pBench(options: P2pServerOptions): Promise<void> {
  // What is wrong with a backend shows before a client comes, if the address is known.
  let endpoint = isUnspecified(options.host) ? undefined : await openEndpoint(options, options.host);
  let session: P2pSession | undefined;
  try {
    const words = await meetClient({
      ...options,
      open: async (host) => (endpoint ??= await openEndpoint(options, host)).port,
    });
    if (endpoint === undefined) return;
    const server = endpoint;
    await telling(words, async () => {
      const workload = await hearWord<P2pWorkload>(words, server.agent.settings.timeoutMs);
      const connection = await server.accept();
      options.onConnected(connection, workload);
      session = new P2pSession(server, connection, words);
      await session.openMemory(memoryOf(workload), MEMORY_NAMES.server, options.device);
      if (comparesHost(options, workload)) await session.openHostMemory(memoryOf(workload), MEMORY_NAMES.serverHost);
      session.say({ ready: true });
      await serveP2pPhases(session, { ...options, host: words.localAddress });
      session.say({});
    });
  } finally {
    await endpoint?.close();
    await session?.close();
  }
}

/** Fails with the server's own error if that ended. */
export async function runP2pBench(options: P2pClientOptions) {
  const { workload, device } = options;
  return withP2pServer(options, workload, (session) => {
    const backend: string = session.connection.backend;
    const head = { schema: 'weftline.bench.p2p/1' as const, method, workload, device, backend };
    return recordRun(undefined, head, () => measure(session, options));
  });
}

/**
 * Measures with the memory of a server, which both sides have open as the workload says. Adds to the document why the connection did
 * not get other backends. Fails with the server's own error if that ended.
 */
export async function withP2pServer<Document extends object>(
  options: P2pSessionOptions,
  workload: P2pWorkload,
  run: (session: P2pSession) => Promise<Document>,
): Promise<Document & { readonly verdicts: readonly BackendVerdict[] }> {
  const { channel: words, port } = await meetServer({ host: options.remoteIp, port: options.port });
  return telling(words, async () => {
    const endpoint = await openEndpoint(options, options.host ?? words.localAddress);
    let session: P2pSession | undefined;
    try {
      const connection = await endpoint.connect(words.remoteAddress, port);
      options.onConnected(connection, endpoint.agent.explain(connection.peer));
      sayWord(words, workload);
      session = new P2pSession(endpoint, connection, words);
      await session.openMemory(memoryOf(workload), MEMORY_NAMES.client, options.device);
      if (comparesHost(options, workload)) await session.openHostMemory(memoryOf(workload), MEMORY_NAMES.clientHost);
      await session.hear();
      await session.remote(MEMORY_NAMES.server);
      const document = await run(session);
      session.say({ phase: 'end' } satisfies P2pPhase);
      await session.hear();
      return { ...document, verdicts: endpoint.agent.explain(connection.peer) };
    } finally {
      await endpoint.close();
      await session?.close();
    }
  });
}

/** One side of the bench; the other side is told its error. */
async function telling<T>(words: ControlChannel, side: () => Promise<T>): Promise<T> {
  try {
    return await side();
  } catch (error) {
    words.refuse(error);
    throw error;
  } finally {
    words.close();
  }
}

async function measure(session: P2pSession, options: P2pClientOptions) {
  const { mode, iterations, inflight, sizes, blocks, pings, compare, descriptors } = options.workload;
  const host = session.connection.ip;
  if (compare > 0) await checkCeilings(session, host);
  const sized: SizeResult[] = [];
  for (const bytes of sizes) {
    const result = await runSize(session, { mode, bytes, iterations, inflight });
    sized.push(result);
    options.onSize(result);
  }
  const direction = mode === 'read' ? 'read' : 'write';
  const swept =
    blocks === undefined
      ? undefined
      : await runBlocks(session, { mode: direction, sweep: blocks, iterations }, options.onBlock);
  const many = descriptors === 0 ? undefined : await runDescriptors(session, { mode: direction, count: descriptors });
  const pingMicroseconds = pings === 0 ? undefined : await runPings(session, pings);
  const ceilings =
    compare === 0 ? undefined : await runCeilings(session, { mode: direction, sizes, rounds: compare, inflight, host });
  const pingCeiling =
    compare === 0 || pings === 0 ? undefined : await runPingCeiling(session, { rounds: compare, host, pings });
  return {
    sizes: sized,
    ...(swept && { blocks: swept }),
    ...(many && { descriptors: many }),
    /** Microseconds: min, P50, P90, P99, P99.9, max. */
    ...(pingMicroseconds && { pingMicroseconds }),
    ...(ceilings && { ceilings: ceilings.results, notCompared: ceilings.notCompared }),
    ...(pingCeiling && { pingCeiling }),
  };
}

/** The ceiling of memory of GPUs is host memory on the same path. */
function comparesHost({ device }: P2pBenchOptions, { compare }: P2pWorkload): boolean {
  return device === 'gpu' && compare > 0;
}

function openEndpoint({ localGpuIndex, device, backend, ownThread }: P2pBenchOptions, host: string): Promise<Endpoint> {
  return Endpoint.create({
    // Host memory needs no GPU.
    ...(device === 'gpu' ? { localGpuIndex } : {}),
    host,
    ownThread,
    ...(backend === undefined ? {} : { backend, backends: [backend] }),
  });
}

// How the two sides meet: over a channel of their own, so that either knows an address at which the other reaches it before it makes
// its endpoint, and can say why it ends.

const SERVER = 'bench server';
const CLIENT = 'the bench client';
/** How long a client that gives up waits for the server that it tells. */
const GIVE_UP_MS = 3000;

interface MeetingServerOptions {
  /** A numeric address of this host, or 0.0.0.0 for all. */
  readonly host: string;
  readonly port: number;
  readonly onListening: (port: number) => void;
  /** Makes this side's endpoint, which the client reaches at `host`, the address that it has called. Returns its port. */
  readonly open: (host: string) => Promise<number>;
}

/**
 * The channel to one client; further ones are refused. Fails with WL_TIMEOUT if none comes within the setting `timeoutMs`,
 * with what `open` throws, and with the client's own error if that gave up.
 */
async function meetClient({ host, port, onListening, open }: MeetingServerOptions): Promise<ControlChannel> {
  const settings = readSettings();
  const hello = helloOptions();
  let lastRefusal = '';
  let isTaken = false;
  let settle: { resolve: (channel: ControlChannel) => void; reject: (error: unknown) => void } | undefined;
  const met = new Promise<ControlChannel>((resolve, reject) => (settle = { resolve, reject }));
  const greet = async (channel: ControlChannel): Promise<HelloBody> => {
    if (isTaken) throw new WeftlineError('WL_BUSY', 'The bench server serves one client, and has one already');
    isTaken = true;
    channel.deadline = performance.now() + settings.timeoutMs;
    return { port: await open(channel.localAddress) };
  };
  const serve = async (channel: ControlChannel): Promise<void> => {
    let isOwn = false;
    try {
      await receiveHello(channel, hello, (body) => {
        const failure = decodePeerFailure(body, CLIENT);
        isOwn = !isTaken;
        if (failure !== undefined) throw failure;
        return greet(channel);
      });
      channel.peer = `${CLIENT} at ${channel.remoteAddress}`;
      settle?.resolve(channel);
    } catch (error) {
      lastRefusal = error instanceof Error ? error.message : String(error);
      // Strangers do not end the server, its own client does.
      if (isOwn) settle?.reject(error);
      throw error;
    }
  };
  const target = { host, port };
  const listener = await MeetingListener.open({ target, credentials: hello.credentials, settings, serve });
  const timer = setTimeout(() => {
    const why = lastRefusal === '' ? '' : `; the last caller was refused: ${lastRefusal}`;
    const message = `Nobody connected to port ${listener.port} within ${settings.timeoutMs} ms${why}`;
    settle?.reject(new WeftlineError('WL_TIMEOUT', message));
  }, settings.timeoutMs);
  try {
    onListening(listener.port);
    return await met;
  } finally {
    clearTimeout(timer);
    listener.close();
  }
}

/** The channel to the server, and the port of its endpoint. Fails as every meeting does. */
async function meetServer(address: {
  readonly host: string;
  readonly port: number;
}): Promise<{ readonly channel: ControlChannel; readonly port: number }> {
  const deadline = new Deadline(readSettings().timeoutMs);
  const { channel, body } = await call(address, { deadline, hello: helloOptions(), body: {}, who: SERVER });
  channel.peer = `the ${SERVER} at ${channel.remoteAddress}`;
  const { port } = body;
  if (typeof port === 'number') return { channel, port };
  throw new WeftlineError('WL_PROTOCOL', `${channel.peer} did not tell the port of its endpoint`);
}

/** Tells a server that its client gives up before anything is measured, and why. Never throws: it may not be there. */
export async function giveUpP2pBench(
  address: { readonly host: string; readonly port: number },
  why: unknown,
): Promise<void> {
  const deadline = new Deadline(GIVE_UP_MS);
  try {
    const body = { ...failureWord(why) };
    const { channel } = await call(address, { deadline, hello: helloOptions(), body, who: SERVER });
    channel.close();
  } catch {
    // The server refuses a client that gives up, or nobody listens.
  }
}

function helloOptions(): HelloOptions {
  return { protocol: 'weftline-bench-p2p', version: 1, credentials: credentialsOf(readToken(undefined)) };
}
