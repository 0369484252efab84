// weftline 2proc: a kernel of one process writes into memory of another and signals it; both check what came.
import type { Command } from 'commander';
import { addressOfAgent } from '../../agent/agent-address.ts';
import { backendNames } from '../../agent/backends/backend-table.ts';
import { asWeftlineError, invalidArgument, WeftlineError } from '../../core/errors.ts';
import { DeviceHost } from '../../device-api/host/device-host.ts';
import type { RegisteredVram } from '../../device-api/host/kernel-memory.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { chooseDevice, openChosenDevice } from '../../device/device-choice.ts';
import { credentialsOf } from '../../meeting/credentials.ts';
import { addressTowards, isLoopback } from '../../meeting/route.ts';
import { readToken } from '../../settings/settings.ts';
import { join, type World } from '../../world/world.ts';
import { addOptions, byteArgument, type FlagsOf, integerArgument, option } from './argument-values.ts';
import { checkUsage, printError } from './exit-codes.ts';
import { addOutputOptions, Output, type OutputFlags } from './output.ts';
import { addAddressOptions, checkPeerAddress, peerAddress, type PeerFlags } from './peer-options.ts';
import { addSettingOptions } from './setting-options.ts';
import { withRanks } from './with-ranks.ts';
import { kernelFiles } from '../../device/cuda/kernel-files.ts';

type TwoProcessRole = 'initiator' | 'target';

const DEADLINE_MS = 30_000;
const DEFAULT_PORT = 9998;

const roles = ['initiator', 'target'] as const;

const twoProcessLevels = ['thread', 'warp', 'block'] as const;

type TwoProcessLevel = (typeof twoProcessLevels)[number];

const twoProcessOptions = [
  option('--role <role>', 'which of both this process is; also --mode', roles),
  option('--mode <role>', '', roles).hideHelp(),
  option('--size <bytes>', 'how much to write', byteArgument(1, 2 ** 31), 1_048_576),
  option('--level <level>', 'who makes the calls together', twoProcessLevels, 'thread'),
  option('--pipeline <n>', 'writes before the signal', integerArgument(1, 65_536), 1),
  option('--handles <n>', '32: a request per lane, with --level warp', ['1', '32'], '1'),
  option('--no-direct', 'through the command queue, also where the kernel could write by itself'),
  option('--backend <name>', 'what carries what goes through the queue; the best there is by default', backendNames),
];

type TwoProcessFlags = FlagsOf<typeof twoProcessOptions> & PeerFlags & OutputFlags;

export function addTwoProcessCommand(program: Command): void {
  const command = program
    .command('2proc')
    .summary('write from a kernel into memory of another process')
    .description(
      'The initiator writes bytes of 42 and a signal from a kernel, the target waits for the signal in a kernel; both\n' +
        'print the checksum, and end with an error if it is wrong. Without --role, both are started here. With it, start\n' +
        'one of each, in any order; the initiator listens on --port. Between hosts give both the same WEFTLINE_TOKEN and\n' +
        'the address of the other side by --peer-ip.',
    );
  addOptions(command, twoProcessOptions);
  addAddressOptions(command, DEFAULT_PORT);
  addOutputOptions(command);
  addSettingOptions(command, ['device', 'nvrtcPath', 'aotFolder', 'useAot', 'timeoutMs', 'trace'], {
    timeoutMs: DEADLINE_MS,
  });
  command.action((flags: TwoProcessFlags) => run(command, flags));
}

async function run(command: Command, flags: TwoProcessFlags): Promise<void> {
  checkUsage(command, () => checkHandles(flags));
  const output = new Output(flags);
  const role = flags.role ?? flags.mode;
  if (role === undefined) {
    await withRanks(2, (world) => runSide(world, flags, { output, prefix: `[${roles[world.rank] ?? ''}] ` }));
    return;
  }
  const ends = await endsOf(command, role, flags);
  output.line(ends.sentence);
  const world = await join({ environment: { ...process.env, ...rankVariables(role, ends.meeting, flags.port) } });
  try {
    await runSide(world, flags, { output, prefix: '', host: ends.host });
  } catch (error) {
    process.exitCode = printError(error);
    await world.close(error);
    return;
  }
  await world.close();
}

/** Fails with WL_INVALID_ARGUMENT. */
function checkHandles({ handles, level }: TwoProcessFlags): void {
  if (handles !== '32' || level === 'warp') return;
  throw invalidArgument('--level', level, 'warp with --handles 32, which is a request per lane');
}

interface Ends {
  /** The place where the initiator listens and the target calls. */
  readonly meeting: string;
  /** The address at which the other side reaches this one. */
  readonly host: string | undefined;
  readonly sentence: string;
}

async function endsOf(command: Command, role: TwoProcessRole, flags: TwoProcessFlags): Promise<Ends> {
  const peer = peerAddress(flags);
  checkUsage(command, () => checkPeerAddress(peer));
  const isHere = isLoopback(peer) && flags.host === undefined;
  if (isHere) {
    const sentence = `Meeting at 127.0.0.1 port ${flags.port}: this machine only; for another one give --peer-ip`;
    return { meeting: '127.0.0.1', host: undefined, sentence };
  }
  const { kind } = credentialsOf(readToken(undefined));
  const host = flags.host === undefined ? await addressTowards(peer) : await addressOfAgent(flags.host, kind);
  // The target may call at any address of this host; what it is told to write to is at one.
  const meeting = role === 'target' ? peer : (flags.host ?? '0.0.0.0');
  const place = meeting === '0.0.0.0' ? 'all addresses of this host,' : meeting;
  const sentence = `Meeting at ${place} port ${flags.port}; the other side reaches this one at ${host}`;
  return { meeting, host, sentence };
}

/** The two are ranks of a world that no launcher made: the initiator is rank 0, which listens. */
function rankVariables(role: TwoProcessRole, meeting: string, port: number): Record<string, string> {
  return {
    WEFTLINE_RANK: String(roles.indexOf(role)),
    WEFTLINE_WORLD_SIZE: String(roles.length),
    WEFTLINE_MASTER_ADDR: meeting,
    WEFTLINE_MASTER_PORT: String(port),
  };
}

interface SideOptions {
  readonly output: Output;
  readonly prefix: string;
  /** The numeric address at which the other side reaches this one; undefined: both are on this host. */
  readonly host?: string | undefined;
}

/** Rank 0 of the world of two is the initiator, rank 1 the target. Fails with WL_CHECK where the bytes differ. */
async function runSide(
  world: World,
  { size: bytes, level, pipeline, handles, direct, backend }: TwoProcessFlags,
  { output, prefix, host: address }: SideOptions,
): Promise<void> {
  const choice = await chooseDevice(world.settings.device, world);
  await using device = await openChosenDevice(choice, world.settings);
  const role = world.rank === INITIATOR ? 'initiator' : 'target';
  const deviceName = device.kind === 'cpu' ? 'CPU' : device.properties.name;
  const print = (line: string): void => output.line(`${prefix}${line}`);
  print(`Starting (${deviceName})`);
  await using host = await DeviceHost.create({
    name: role,
    device,
    direct: direct && backend === undefined,
    timeoutMs: world.settings.timeoutMs,
    token: world.secret,
    ...(backend !== undefined && { backends: [backend] }),
    ...(address !== undefined && { host: address }),
  });
  world.peerLost.addEventListener('abort', () => host.abort(asWeftlineError(world.peerLost.reason)));
  const side: Side = {
    bytes,
    level,
    pipeline,
    handles: Number(handles),
    world,
    device,
    host,
    data: await host.allocate(bytes),
    counter: await host.allocate(COUNTER_BYTES),
    print,
    conclude: (line) => output.result(`${prefix}${line}`),
  };
  const outcome = await (role === 'initiator' ? runInitiator(side) : runTarget(side));
  // Nobody frees memory that the other still writes to.
  await world.barrier('2proc/end');
  print('Complete');
  // The initiator has the document if both sides are ranks of one command.
  if (prefix !== '' && role !== 'initiator') return;
  output.report('', { schema: 'weftline.2proc/1', role, device: deviceName, bytes, level, ...outcome });
}

// What both sides do: one writes bytes and a signal into memory of the other from a kernel, both check them.

/** What every byte of the data is. */
const VALUE = 42;
const COUNTER_BYTES = 8;
const INITIATOR = 0;
const TARGET = 1;

interface Published {
  /** base64 */
  readonly metadata: string;
  readonly data: string;
  readonly counter: string;
}

interface Side {
  readonly bytes: number;
  /** The threads of a GPU that make the calls together; the CPU has one thread. */
  readonly level: TwoProcessLevel;
  /** Puts before the signal. */
  readonly pipeline: number;
  /** 1, or 32 for one per lane (level `warp`). */
  readonly handles: number;
  readonly world: World;
  readonly device: CpuDevice | CudaDevice;
  readonly host: DeviceHost;
  readonly data: RegisteredVram;
  readonly counter: RegisteredVram;
  /** Prints a line on the way. */
  readonly print: (line: string) => void;
  /** Prints the line that says that the bytes came. */
  readonly conclude: (line: string) => void;
}

interface Outcome {
  /** How the writes travelled, and why; undefined at the target, which does nothing for them. */
  readonly path: string | undefined;
  /** Sum of the bytes at the target, as the target counted it. */
  readonly checksum: number;
}

async function runInitiator(side: Side): Promise<Outcome> {
  const { host, data, bytes, print, world } = side;
  await host.write(data, new Uint8Array(bytes).fill(VALUE));
  print(`Data checksum: ${byteSum(await host.read(data, bytes))}`);
  await publish(side);
  print('Published metadata, waiting for the target');
  const target = await connect(side, TARGET);
  print('Connected to target');
  const requests = [];
  let path = '';
  for (let handle = 0; handle < side.handles; handle += 1) {
    const request = await host.createWriteReq({ memory: data, bytes }, fromBase64(target.data), target.name);
    if (handle === 0) print(`Path: ${(path = request.path)}`);
    requests.push(await host.createGpuReq(request));
  }
  const signal = await host.createGpuReq(
    await host.createWriteReq({ memory: side.counter }, fromBase64(target.counter), target.name, { soleWriter: true }),
  );
  print(`Transferring data via ${side.device.kind === 'cpu' ? 'CPU' : 'GPU'} kernel (${side.level} level)`);
  await writeAndSignal(side, requests, signal);
  print('Transfer complete');
  const sum = await world.store.getJson<number>('2proc/checksum', { from: [TARGET] });
  check(sum, bytes, 'The target');
  side.conclude(`Checksum OK at the target: ${sum}`);
  return { path, checksum: sum };
}

async function runTarget(side: Side): Promise<Outcome> {
  const { host, data, bytes, print, world } = side;
  await publish(side);
  print('Published metadata and descriptors');
  await connect(side, INITIATOR);
  print('Connected to initiator');
  print('Waiting for data');
  await waitForSignal(side);
  print('Signal received');
  const sum = byteSum(await host.read(data, bytes));
  await world.store.setJson('2proc/checksum', sum);
  check(sum, bytes, 'This side');
  side.conclude(`Checksum OK: ${sum}`);
  return { path: undefined, checksum: sum };
}

async function publish({ world, host, data, counter }: Side): Promise<void> {
  const published: Published = {
    metadata: toBase64(await host.getMetadata()),
    data: toBase64(host.serializeXferDescs({ memory: data })),
    counter: toBase64(host.serializeXferDescs({ memory: counter })),
  };
  await world.store.setJson(`2proc/${world.rank}`, published);
}

async function connect({ world, host }: Side, rank: number): Promise<Published & { readonly name: string }> {
  const published = await world.store.getJson<Published>(`2proc/${rank}`, { from: [rank] });
  return { ...published, name: await host.addRemoteAgent(fromBase64(published.metadata)) };
}

const writeKernels = {
  thread: 'postWriteAndSignalThread',
  warp: 'postWriteAndSignalWarp',
  block: 'postWriteAndSignalBlock',
} as const;

const threads = { thread: 1, warp: 32, block: 512 } as const;

async function writeAndSignal(side: Side, requests: readonly number[], signal: number): Promise<void> {
  const { device, host, bytes, pipeline, level } = side;
  if (device.kind === 'cpu') {
    for (let turn = 0; turn < pipeline; turn += 1) {
      for (const [index, request] of requests.entries()) {
        const begin = Math.floor((bytes * index) / requests.length);
        const end = Math.floor((bytes * (index + 1)) / requests.length);
        host.kernelApi.put(request, { target: begin, source: begin, bytes: end - begin });
      }
    }
    host.kernelApi.signal(signal, { target: 0, add: 1 });
    return host.kernelApi.flush(signal);
  }
  const kernels = await device.loadKernels(kernelFiles.twoProcess);
  using table = await device.tensor('u8', [requests.length * 8], addresses(requests));
  const plan = kernels[writeKernels[level]].plan({ grid: 1, block: threads[level] });
  plan.arguments.set('requests', table.address);
  plan.arguments.set('requestCount', requests.length);
  plan.arguments.set('signalRequest', signal);
  plan.arguments.set('bytes', bytes);
  plan.arguments.set('add', 1);
  plan.arguments.set('pipeline', pipeline);
  plan.launch();
  await device.stream.idle({ timeoutMs: side.world.settings.timeoutMs + 5_000 });
}

async function waitForSignal({ device, host, counter, world }: Side): Promise<void> {
  if (device.kind === 'cpu') {
    const bytes = host.view(counter);
    return host.kernelApi.wait(new BigUint64Array(bytes.buffer, bytes.byteOffset, 1), 1);
  }
  const { waitForSignal: kernel } = await device.loadKernels(kernelFiles.twoProcess);
  const plan = kernel.plan({ grid: 1, block: 32 });
  plan.arguments.set('counter', counter.address);
  plan.arguments.set('waits', host.waits);
  plan.arguments.set('expected', 1);
  plan.launch();
  // The kernel's own deadline comes first, and says more.
  await device.stream.idle({ timeoutMs: world.settings.timeoutMs + 5_000 });
}

function check(sum: number, bytes: number, who: string): void {
  if (sum === VALUE * bytes) return;
  throw new WeftlineError('WL_CHECK', `${who} holds bytes whose sum is ${sum}, not ${VALUE * bytes}`, {
    details: { sum, expected: VALUE * bytes },
  });
}

function byteSum(bytes: Uint8Array): number {
  let sum = 0;
  for (const byte of bytes) sum += byte;
  return sum;
}

function addresses(values: readonly number[]): Uint8Array {
  return new Uint8Array(BigUint64Array.from(values, BigInt).buffer);
}

function toBase64(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('base64');
}

function fromBase64(text: string): Uint8Array {
  return Buffer.from(text, 'base64');
}
