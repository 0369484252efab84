// weftline bench p2p: memory of one process to memory of another, over any backend of an agent.
import { type Command, InvalidArgumentError, Option } from 'commander';
import type { BackendName } from '../../agent/index.ts';
import { type P2pBenchOptions, runP2pBench, serveP2pBench } from '../bench/p2p/p2p-bench.ts';
import {
  type BlockSweep,
  checkP2pWorkload,
  DEFAULT_ITERATIONS,
  defaultSizes,
  MAX_DESCRIPTORS,
  p2pModes,
  type P2pMode,
  type P2pWorkload,
} from '../bench/p2p/p2p-workload.ts';
import {
  p2pBenchReport,
  p2pBlockHeading,
  p2pBlockLine,
  p2pHeading,
  p2pPathLines,
  type P2pRole,
  p2pSizeLine,
  roleText,
} from '../report/p2p-bench-report.ts';
import { integerArgument } from './integer-argument.ts';
import { requireWritableFolder, writeJson } from './output-file.ts';
import { addSettingOptions } from './setting-options.ts';

interface P2pFlags {
  readonly role: P2pRole;
  readonly remoteIp: string;
  readonly host: string;
  readonly port: number;
  readonly localGpuIdx: number;
  readonly numCpus: number;
  readonly device: 'cpu' | 'gpu';
  readonly backend?: BackendName;
  readonly mode: P2pMode;
  readonly sizes: readonly number[];
  readonly iters: number;
  readonly inflight: number;
  readonly blocks?: readonly number[];
  readonly batches: readonly number[];
  readonly pings: number;
  readonly descriptors: number;
  readonly compare: number;
  readonly agentThread: boolean;
  readonly json?: string;
}

const MOST = 2 ** 31;

export function addP2pBench(bench: Command): void {
  const command = bench
    .command('p2p')
    .summary('memory of one process to memory of another, over any path of an agent')
    .description(
      'Start the server, then the client, which decides what is measured; the server ends by itself. ' +
        'Between hosts both need the same WEFTLINE_TOKEN.',
    )
    .addOption(new Option('--role <role>', 'which end this is').choices(['server', 'client']).makeOptionMandatory())
    .option('--remote-ip <address>', 'where the server is', '127.0.0.1')
    .option('--host <address>', 'where peers reach this host', '127.0.0.1')
    .option('--port <number>', 'TCP port of the server', integerArgument(1, 65_535), 20_001)
    .option('--local-gpu-idx <n>', 'the GPU of --device gpu; told to the peer', integerArgument(0, 1023), 0)
    .option('--num-cpus <n>', 'only shown: an agent has one engine', integerArgument(1, 1024), 4)
    .addOption(new Option('--device <kind>', 'where the memory is').choices(['cpu', 'gpu']).default('cpu'))
    .addOption(new Option('--backend <name>', 'this path or none').choices(['local', 'ucx', 'multipath']))
    .addOption(new Option('--mode <mode>', 'what the client does').choices(p2pModes).default('write'))
    .option('--sizes <list>', 'bytes of messages, as 256,1048576', numberList, [...defaultSizes])
    .option(
      '--iters <n>',
      'messages of each size; a sixteenth beyond 1 MiB',
      integerArgument(1, MOST),
      DEFAULT_ITERATIONS,
    )
    .option('--inflight <n>', 'messages under way at a time', integerArgument(1, 256), 1)
    .option('--blocks <first,last>', 'sweep of block sizes, doubling, with the columns of nixlbench', numberList)
    .option('--batches <first,last>', 'blocks of a transfer in that sweep, doubling', numberList, [1, 1])
    .option('--pings <n>', 'round trips of 256 bytes with a notification', integerArgument(0, MOST), 0)
    .option(
      '--descriptors <n>',
      'one transfer of so many blocks: time and memory to prepare it',
      integerArgument(0, MAX_DESCRIPTORS),
      0,
    )
    .option(
      '--compare <rounds>',
      'beside the ceiling of the path: memcpy, bench transport or ucx_perftest',
      integerArgument(0, 1000),
      0,
    )
    .option('--no-agent-thread', "the agent works on the caller's thread alone, inside calls that wait")
    .option('--json <file>', 'write the result document (client)');
  addSettingOptions(command, ['timeoutMs', 'agentSpinUs', 'transportPaths', 'transportThread']);
  command.action((flags: P2pFlags) => run(flags));
}

async function run(flags: P2pFlags): Promise<void> {
  const workload = workloadOf(flags);
  checkP2pWorkload(workload);
  if (flags.json !== undefined) requireWritableFolder(flags.json);
  const { role, device, localGpuIdx: localGpuIndex, host, port } = flags;
  const heading = { sizes: flags.sizes, device, gpuIndex: localGpuIndex, iterations: flags.iters };
  for (const line of p2pHeading(role, heading)) show(line);
  show(`Creating Engine with GPU index: ${localGpuIndex}, CPUs: ${flags.numCpus}`);
  const { backend, agentThread: ownThread } = flags;
  const options: P2pBenchOptions = { localGpuIndex, device, backend, host, port, ownThread };
  if (role === 'server') await serve(options);
  else await measure(options, flags, workload);
  show(`[${roleText(role)}] Benchmark complete`);
}

async function serve(options: P2pBenchOptions): Promise<void> {
  await serveP2pBench({
    ...options,
    onListening: () => {
      show('Endpoint initialized successfully');
      show('[Server] Waiting for connection …');
    },
    onConnected: ({ ip, gpuIndex, id }) => show(`[Server] Connected to ${ip} (GPU ${gpuIndex}) conn_id=${id}`),
    onSize: (result) => show(p2pSizeLine('server', result)),
  });
}

async function measure(options: P2pBenchOptions, { remoteIp, json }: P2pFlags, workload: P2pWorkload): Promise<void> {
  let hasBlocks = false;
  const report = await runP2pBench({
    ...options,
    remoteIp,
    workload,
    onConnected: ({ id, backend, verdicts }) => {
      show('Endpoint initialized successfully');
      show(`[Client] Connected to ${remoteIp} conn_id=${id}`);
      for (const line of p2pPathLines({ backend, verdicts })) show(line);
    },
    onSize: (result) => show(p2pSizeLine('client', result)),
    onBlock: (result) => {
      if (!hasBlocks) show(p2pBlockHeading());
      hasBlocks = true;
      show(p2pBlockLine(result));
    },
  });
  process.stdout.write(p2pBenchReport(report));
  writeJson(json, report);
}

function workloadOf({ iters: iterations, blocks, batches, ...flags }: P2pFlags): P2pWorkload {
  const { mode, sizes, inflight, pings, descriptors, compare } = flags;
  return { mode, sizes, iterations, inflight, pings, descriptors, compare, blocks: sweepOf(blocks, batches) };
}

function sweepOf(blocks: readonly number[] | undefined, batches: readonly number[]): BlockSweep | undefined {
  if (blocks === undefined) return undefined;
  const [startBlockBytes = 1, maxBlockBytes = startBlockBytes] = blocks;
  const [startBatch = 1, maxBatch = startBatch] = batches;
  return { startBlockBytes, maxBlockBytes, startBatch, maxBatch };
}

function show(line: string): void {
  process.stdout.write(`${line}\n`);
}

function numberList(text: string): number[] {
  const numbers = text.split(',').map(integerArgument(1, MOST));
  if (numbers.length > 0) return numbers;
  throw new InvalidArgumentError('Allowed are numbers with commas between them.');
}
