// The P2P bench between two processes: the server offers its memory, the client moves, measures and reports.
import { type BackendName, Endpoint } from '../../../agent/index.ts';
import { readSettings } from '../../../settings/settings.ts';
import { loadAverage, machineDocument } from '../machine.ts';
import { samplePlacement } from '../placement.ts';
import { checkCeilings, runCeilings, runPingCeiling } from './p2p-ceilings.ts';
import { runDescriptors } from './p2p-descriptors.ts';
import { MEMORY_NAMES, type P2pPhase, runBlocks, runPings, runSize, serveP2pPhases } from './p2p-phases.ts';
import { type BlockResult, type P2pBenchReport, p2pMethod, type SizeResult } from './p2p-results.ts';
import { P2pSession } from './p2p-session.ts';
import { memoryOf, type P2pWorkload } from './p2p-workload.ts';

export interface P2pBenchOptions {
  readonly localGpuIndex: number;
  readonly device: 'cpu' | 'gpu';
  /** Both sides must have it; undefined: the agent chooses. */
  readonly backend: BackendName | undefined;
  /** False: on the caller's thread alone, as `Agent.create` says. */
  readonly ownThread: boolean;
  /** Numeric address of this host. */
  readonly host: string;
  readonly port: number;
}

export interface P2pServerOptions extends P2pBenchOptions {
  readonly onListening: (port: number) => void;
  readonly onConnected: (connection: { readonly ip: string; readonly gpuIndex: number; readonly id: number }) => void;
  readonly onSize: (result: SizeResult) => void;
}

export interface P2pClientOptions extends P2pBenchOptions {
  readonly remoteIp: string;
  readonly workload: P2pWorkload;
  /** `backend`: which path it got; `verdicts`: why not the others. */
  readonly onConnected: (connection: Pick<P2pBenchReport, 'backend' | 'verdicts'> & { readonly id: number }) => void;
  readonly onSize: (result: SizeResult) => void;
  readonly onBlock: (result: BlockResult) => void;
}

/** Serves one client. Fails with WL_TIMEOUT if none comes within the setting `timeoutMs`. */
export async function serveP2pBench(options: P2pServerOptions): Promise<void> {
  const endpoint = await Endpoint.create(endpointOptions(options, options.port));
  options.onListening(endpoint.port);
  let session: P2pSession | undefined;
  try {
    const connection = await endpoint.accept();
    options.onConnected(connection);
    session = await P2pSession.open(endpoint, connection, await endpoint.accept());
    const { bytes } = await session.hear<{ readonly bytes: number }>();
    await session.openMemory(bytes, MEMORY_NAMES.server, options.device);
    await serveP2pPhases(session, { onSize: options.onSize, host: options.host });
    await session.say({});
  } finally {
    await endpoint.close();
    await session?.close();
  }
}

export async function runP2pBench(options: P2pClientOptions): Promise<P2pBenchReport> {
  const { workload, device } = options;
  const endpoint = await Endpoint.create(endpointOptions(options, 0));
  let session: P2pSession | undefined;
  try {
    const connection = await endpoint.connect(options.remoteIp, options.port);
    const { id, backend, peer } = connection;
    options.onConnected({ id, backend, verdicts: endpoint.agent.explain(peer) });
    const words = await endpoint.connect(options.remoteIp, options.port);
    session = await P2pSession.open(endpoint, connection, words);
    const bytes = memoryOf(workload);
    await session.say({ bytes });
    await session.openMemory(bytes, MEMORY_NAMES.client, device);
    await session.remote(MEMORY_NAMES.server);
    const placementBefore = await samplePlacement();
    const loadBefore = loadAverage();
    const results = await measure(session, options);
    const loadAfter = loadAverage();
    await session.say({ phase: 'end' } satisfies P2pPhase);
    await session.hear();
    return {
      schema: 'weftline.bench.p2p/1',
      date: new Date().toISOString(),
      method: p2pMethod,
      workload,
      device,
      backend: connection.backend,
      verdicts: endpoint.agent.explain(connection.peer),
      machine: machineDocument(),
      settings: readSettings(),
      loadAverage: { before: loadBefore, after: loadAfter },
      placement: { before: placementBefore, after: await samplePlacement() },
      ...results,
    };
  } finally {
    await endpoint.close();
    await session?.close();
  }
}

type Measured = Pick<
  P2pBenchReport,
  'sizes' | 'blocks' | 'descriptors' | 'pingMicroseconds' | 'ceilings' | 'pingCeiling'
>;

async function measure(session: P2pSession, options: P2pClientOptions): Promise<Measured> {
  const { mode, iterations, inflight, sizes, blocks, pings, compare, descriptors } = options.workload;
  const { remoteIp: host } = options;
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
    ...(swept === undefined ? {} : { blocks: swept }),
    ...(many === undefined ? {} : { descriptors: many }),
    ...(pingMicroseconds === undefined ? {} : { pingMicroseconds }),
    ...(ceilings === undefined ? {} : { ceilings }),
    ...(pingCeiling === undefined ? {} : { pingCeiling }),
  };
}

function endpointOptions(
  { localGpuIndex, backend, host, ownThread }: P2pBenchOptions,
  port: number,
): NonNullable<Parameters<typeof Endpoint.create>[0]> {
  return {
    localGpuIndex,
    host,
    port,
    ownThread,
    ...(backend === undefined ? {} : { backend, backends: [backend] }),
  };
}
