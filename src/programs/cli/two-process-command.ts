// weftline 2proc: a kernel of one process writes into memory of another and signals it; both check what came.
import { type Command, Option } from 'commander';
import { type BackendName, backendNames } from '../../agent/backend.ts';
import { WeftlineError } from '../../core/errors.ts';
import { chooseDevice } from '../../device/device-choice.ts';
import { openChosenDevice } from '../../device/open-device.ts';
import { runTwoProcess, type TwoProcessLevel, twoProcessLevels } from '../two-process/two-process.ts';
import { settingsTable } from '../../settings/settings.ts';
import { join, type World } from '../../world/world.ts';
import { integerArgument } from './integer-argument.ts';
import { printError } from './print-error.ts';
import { addSettingOptions } from './setting-options.ts';
import { withRanks } from './with-ranks.ts';

interface TwoProcessFlags {
  readonly mode?: 'initiator' | 'target';
  readonly size: number;
  readonly level: TwoProcessLevel;
  readonly pipeline: number;
  readonly handles: string;
  readonly direct: boolean;
  readonly backend?: BackendName;
  readonly peerIp: string;
  readonly port: number;
}

const DEADLINE_MS = 30_000;

export function addTwoProcessCommand(program: Command): void {
  const command = program
    .command('2proc')
    .summary('write from a kernel into memory of another process')
    .description(
      'The initiator writes bytes of 42 and a signal from a kernel, the target waits for the signal in a kernel; both\n' +
        'print the checksum, and end with an error if it is wrong. Without --mode, both are started here. With it, start\n' +
        'one of each, in any order; the initiator listens on --port.',
    )
    .addOption(new Option('--mode <mode>', 'which of both this process is').choices(['initiator', 'target']))
    .option('--size <bytes>', 'how much to write', integerArgument(1, 2 ** 31), 1_048_576)
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
    )
    .option(
      '--peer-ip <address>',
      'where the other is, if not on this machine; then both need the same WEFTLINE_TOKEN',
      '127.0.0.1',
    )
    .option('--port <port>', 'where the initiator listens', integerArgument(1, 65_535), 9998);
  addSettingOptions(command, ['device', 'timeoutMs']);
  command.action(run);
}

async function run(flags: TwoProcessFlags): Promise<void> {
  if (flags.handles === '32' && flags.level !== 'warp') {
    throw new WeftlineError('WL_INVALID_ARGUMENT', '--handles 32 is a request per lane: use --level warp');
  }
  process.env[settingsTable.timeoutMs.env] ??= String(DEADLINE_MS);
  if (flags.mode === undefined) {
    await withRanks(2, (world) => runSide(world, flags, world.rank === 0 ? '[initiator] ' : '[target] '));
    return;
  }
  const world = await join({ environment: { ...process.env, ...rankVariables(flags) } });
  try {
    await runSide(world, flags, '');
  } catch (error) {
    process.exitCode = printError(error);
    await world.close(error);
    return;
  }
  await world.close();
}

/** The two are ranks of a world that no launcher made: the initiator is rank 0, which listens. */
function rankVariables({ mode, peerIp, port }: TwoProcessFlags): Record<string, string> {
  const isLocal = /^(127\.|localhost$|::1$)/.test(peerIp);
  const host = isLocal ? '127.0.0.1' : mode === 'initiator' ? '0.0.0.0' : peerIp;
  return {
    WEFTLINE_RANK: mode === 'initiator' ? '0' : '1',
    WEFTLINE_WORLD_SIZE: '2',
    WEFTLINE_MASTER_ADDR: host,
    WEFTLINE_MASTER_PORT: String(port),
  };
}

async function runSide(world: World, flags: TwoProcessFlags, prefix: string): Promise<void> {
  const { size: bytes, level, pipeline, direct, backend } = flags;
  const choice = await chooseDevice(world.settings.device, world);
  await using device = await openChosenDevice(choice, world.settings);
  await runTwoProcess(world, device, {
    bytes,
    level,
    pipeline,
    direct: direct && backend === undefined,
    backend,
    handles: Number(flags.handles),
    print: (line) => process.stdout.write(`${prefix}${line}\n`),
  });
}
