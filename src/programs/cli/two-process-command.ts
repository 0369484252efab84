// weftline 2proc: a kernel of one process writes into memory of another and signals it; both check what came.
import { type Command, Option } from 'commander';
import { addressOfAgent } from '../../agent/agent-address.ts';
import { type BackendName, backendNames } from '../../agent/backends/backend-table.ts';
import { invalidArgument } from '../../core/errors.ts';
import { credentialsOf } from '../../meeting/credentials.ts';
import { isLoopback } from '../../meeting/loopback.ts';
import { addressTowards } from '../../meeting/route.ts';
import { chooseDevice } from '../../device/device-choice.ts';
import { openChosenDevice } from '../../device/open-device.ts';
import { runTwoProcess, type TwoProcessLevel, twoProcessLevels } from '../two-process/two-process.ts';
import { readToken } from '../../settings/token.ts';
import { join, type World } from '../../world/world.ts';
import { byteArgument, integerArgument } from './argument-values.ts';
import { addOutputOptions, Output, type OutputFlags } from './output.ts';
import { addAddressOptions, checkPeerAddress, peerAddress, type PeerFlags } from './peer-options.ts';
import { printError } from './print-error.ts';
import { addSettingOptions } from './setting-options.ts';
import { checkUsage } from './usage.ts';
import { withRanks } from './with-ranks.ts';

type TwoProcessRole = 'initiator' | 'target';

interface TwoProcessFlags extends PeerFlags, OutputFlags {
  readonly role?: TwoProcessRole;
  /** Another name of `role`. */
  readonly mode?: TwoProcessRole;
  readonly size: number;
  readonly level: TwoProcessLevel;
  readonly pipeline: number;
  readonly handles: string;
  readonly direct: boolean;
  readonly backend?: BackendName;
}

const DEADLINE_MS = 30_000;
const DEFAULT_PORT = 9998;
const roles = ['initiator', 'target'] as const;

export function addTwoProcessCommand(program: Command): void {
  const command = program
    .command('2proc')
    .summary('write from a kernel into memory of another process')
    .description(
      'The initiator writes bytes of 42 and a signal from a kernel, the target waits for the signal in a kernel; both\n' +
        'print the checksum, and end with an error if it is wrong. Without --role, both are started here. With it, start\n' +
        'one of each, in any order; the initiator listens on --port. Between hosts give both the same WEFTLINE_TOKEN and\n' +
        'the address of the other side by --peer-ip.',
    )
    .addOption(new Option('--role <role>', 'which of both this process is; also --mode').choices(roles))
    .addOption(new Option('--mode <role>').choices(roles).hideHelp())
    .option('--size <bytes>', 'how much to write', byteArgument(1, 2 ** 31), 1_048_576)
    .addOption(
      new Option('--level <level>', 'who makes the calls together').choices(twoProcessLevels).default('thread'),
    )
    .option('--pipeline <n>', 'writes before the signal', integerArgument(1, 65_536), 1)
    .addOption(
      new Option('--handles <n>', '32: a request per lane, with --level warp').choices(['1', '32']).default('1'),
    )
    .option('--no-direct', 'through the command queue, also where the kernel could write by itself')
    .addOption(
      new Option('--backend <name>', 'what carries what goes through the queue; the best there is by default').choices(
        backendNames,
      ),
    );
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
  /** Where the initiator listens and the target calls. */
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
  readonly host?: string | undefined;
}

async function runSide(world: World, flags: TwoProcessFlags, { output, prefix, host }: SideOptions): Promise<void> {
  const { size: bytes, level, pipeline, direct, backend } = flags;
  const choice = await chooseDevice(world.settings.device, world);
  await using device = await openChosenDevice(choice, world.settings);
  const result = await runTwoProcess(world, device, {
    bytes,
    level,
    pipeline,
    direct: direct && backend === undefined,
    backend,
    host,
    handles: Number(flags.handles),
    print: (line) => output.line(`${prefix}${line}`),
    conclude: (line) => output.result(`${prefix}${line}`),
  });
  // Where both sides are ranks of one command, the initiator has its document.
  if (prefix === '' || world.rank === 0) output.report('', { schema: 'weftline.2proc/1', ...result });
}
