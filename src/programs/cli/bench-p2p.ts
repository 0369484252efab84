// weftline bench p2p: memory of one process to memory of another, over any backend of an agent.
import type { Command } from 'commander';
import { backendNames } from '../../agent/backends/backend-table.ts';
import { type P2pBenchOptions, runP2pBench, serveP2pBench } from '../bench/p2p/p2p-bench.ts';
import { giveUpP2pBench } from '../bench/p2p/p2p-meeting.ts';
import {
  type BlockSweep,
  checkP2pWorkload,
  DEFAULT_ITERATIONS,
  defaultSizes,
  MAX_DESCRIPTORS,
  p2pModes,
  type P2pWorkload,
} from '../bench/p2p/p2p-workload.ts';
import {
  p2pBlockLine,
  p2pOneSidedLine,
  p2pPathLine,
  p2pSizeLine,
  p2pView,
  p2pWorkloadLines,
} from '../report/p2p-view.ts';
import {
  addOptions,
  byteArgument,
  type FlagsOf,
  integerArgument,
  listArgument,
  option,
  sweepArgument,
} from './argument-values.ts';
import { addReportOptions, Output, type OutputFlags } from './output.ts';
import {
  addBenchRoleOptions,
  benchRole,
  checkPeerAddress,
  listenAddress,
  listeningLine,
  peerAddress,
  type PeerFlags,
} from './peer-options.ts';
import { requireGpu } from './require-gpu.ts';
import { addSettingOptions } from './setting-options.ts';
import { checkUsage } from './exit-codes.ts';

const MAX_COUNT = 2 ** 31;
const DEFAULT_PORT = 20_001;
const count = integerArgument(1, MAX_COUNT);
const byteList = listArgument(byteArgument(1, MAX_COUNT));
const byteSweep = sweepArgument(byteArgument(1, MAX_COUNT));

const p2pOptions = [
  option('--local-gpu-idx <n>', 'the GPU of --device gpu; told to the peer', integerArgument(0, 1023), 0),
  option('--num-cpus <n>', '', integerArgument(1, 1024)).hideHelp(),
  option('--device <kind>', 'where the memory is', ['cpu', 'gpu'], 'cpu'),
  option('--backend <name>', 'this path or none', backendNames),
  option('--mode <mode>', 'what the client does', p2pModes, p2pModes[0]),
  option('--sizes <list>', 'bytes of messages, as 256,64K,1M', byteList, defaultSizes),
  option('--iterations <n>', 'messages of each size; also --iters', count, DEFAULT_ITERATIONS),
  option('--iters <n>', '', count).hideHelp(),
  option('--inflight <n>', 'messages under way at a time', integerArgument(1, 256), 1),
  option('--blocks <first,last>', 'sweep of block sizes, doubling, with the columns of nixlbench', byteSweep),
  option('--batches <first,last>', 'blocks of a transfer in that sweep, doubling', sweepArgument(count), [1, 1]),
  option('--pings <n>', 'round trips of 256 bytes with a notification', integerArgument(0, MAX_COUNT), 0),
  option(
    '--descriptors <n>',
    'one transfer of so many blocks: time and memory to prepare it',
    integerArgument(0, MAX_DESCRIPTORS),
    0,
  ),
  option(
    '--compare <rounds>',
    'writes (or reads) of 1 MiB and more beside the ceiling of the path: memcpy, bench transport or ucx_perftest; of memory of a GPU between hosts: host memory on the same path',
    integerArgument(0, 1000),
    0,
  ),
  option('--no-agent-thread', "the agent works on the caller's thread alone, inside calls that wait"),
];

type P2pFlags = FlagsOf<typeof p2pOptions> & PeerFlags & OutputFlags;

export function addP2pBench(bench: Command): void {
  const command = bench
    .command('p2p')
    .summary('memory of one process to memory of another, over any path of an agent')
    .description(
      'Start the server, then the client, which decides what is measured; the server ends by itself. ' +
        'Between hosts both need the same WEFTLINE_TOKEN.',
    );
  addBenchRoleOptions(command, DEFAULT_PORT);
  addOptions(command, p2pOptions);
  addReportOptions(command);
  addSettingOptions(command, [
    'timeoutMs',
    'trace',
    'agentSpinUs',
    'transportPaths',
    'transportThread',
    'stagingPieceBytes',
    'stagingPieces',
  ]);
  command.action((flags: P2pFlags) => run(command, flags));
}

async function run(command: Command, flags: P2pFlags): Promise<void> {
  const output = new Output(flags);
  const role = benchRole(command, flags);
  const { device, localGpuIdx: localGpuIndex, port, backend, agentThread: ownThread } = flags;
  const options: P2pBenchOptions = { localGpuIndex, device, backend, port, ownThread };
  // As UCCL's benchmark prints it.
  output.line(`weftline P2P Benchmark — role: ${role}`);
  output.line(`Creating Engine with GPU index: ${localGpuIndex}, engine threads: ${ownThread ? 1 : 0}`);
  if (flags.numCpus !== undefined) output.line('--num-cpus has no effect: an agent has one engine thread');
  if (role === 'server') await serve(options, flags, output);
  else await measure(command, options, flags, output);
  output.line(`[${role === 'server' ? 'Server' : 'Client'}] Benchmark complete`);
}

async function serve(options: P2pBenchOptions, flags: P2pFlags, { line, result: show }: Output): Promise<void> {
  checkDevice(options);
  const host = listenAddress(flags);
  await serveP2pBench({
    ...options,
    host,
    onListening: (port) => {
      line(`[Server] ${listeningLine(host, port)}`);
      line('[Server] Waiting for connection …');
    },
    onConnected: ({ ip, gpuIndex, id, workload }) => {
      line(`[Server] Connected to ${ip} (GPU ${gpuIndex}) conn_id=${id}`);
      for (const text of p2pWorkloadLines(workload, options.device, options.localGpuIndex)) line(text);
    },
    onSize: (result) => show(p2pSizeLine('Server', result)),
    onOneSided: (size) => line(p2pOneSidedLine(size)),
  });
}

async function measure(command: Command, options: P2pBenchOptions, flags: P2pFlags, output: Output): Promise<void> {
  const { line, result: show } = output;
  const workload = workloadOf(flags);
  const remoteIp = peerAddress(flags);
  checkUsage(command, () => checkPeerAddress(remoteIp));
  try {
    checkUsage(command, () => checkP2pWorkload(workload));
    checkDevice(options);
  } catch (error) {
    await giveUpP2pBench({ host: remoteIp, port: options.port }, error);
    throw error;
  }
  for (const text of p2pWorkloadLines(workload, options.device, options.localGpuIndex)) line(text);
  let hasBlocks = false;
  const report = await runP2pBench({
    ...options,
    remoteIp,
    host: flags.host,
    workload,
    onConnected: ({ id, backend, verdicts }) => {
      line(`[Client] Connected to ${remoteIp} conn_id=${id}`);
      line(p2pPathLine({ backend, verdicts }));
    },
    onSize: (result) => show(p2pSizeLine('Client', result)),
    onBlock: (result) => {
      if (!hasBlocks) show(p2pBlockLine());
      hasBlocks = true;
      show(p2pBlockLine(result));
    },
  });
  output.report(p2pView(report), report);
}

/** Fails with WL_UNSUPPORTED if the memory is to be of a GPU that this machine does not have. */
function checkDevice({ device, localGpuIndex }: P2pBenchOptions): void {
  if (device === 'gpu') requireGpu(localGpuIndex);
}

function workloadOf({ iterations, iters = iterations, blocks, batches, ...flags }: P2pFlags): P2pWorkload {
  const { mode, sizes, inflight, pings, descriptors, compare } = flags;
  return { mode, sizes, iterations: iters, inflight, pings, descriptors, compare, blocks: sweepOf(blocks, batches) };
}

function sweepOf(blocks: readonly number[] | undefined, batches: readonly number[]): BlockSweep | undefined {
  if (blocks === undefined) return undefined;
  const [startBlockBytes = 1, maxBlockBytes = startBlockBytes] = blocks;
  const [startBatch = 1, maxBatch = startBatch] = batches;
  return { startBlockBytes, maxBlockBytes, startBatch, maxBatch };
}
