// What the launcher decides before it starts anything: which ranks run here, under which token, job id and settings.
import { randomBytes } from 'node:crypto';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { readSettings, type Settings } from '../settings/settings.ts';
import type { LaunchOptions } from './launcher.ts';

export interface JobPlan {
  readonly settings: Settings;
  readonly size: number;
  readonly firstRank: number;
  readonly token: string;
  readonly jobPrefix: string;
  /** Tells the processes of this launcher from all others. */
  readonly launchId: string;
  readonly command: readonly string[];
}

const MAX_RANKS = 4096;
const MAX_NODES = 65_536;

/** Fails with WL_INVALID_ARGUMENT or WL_CONFIG; nothing has been started then. */
export function planJob(options: LaunchOptions): JobPlan {
  const { nodeCount = 1, nodeRank = 0, master } = options;
  checkInteger('ranks', options.ranks, 1, MAX_RANKS);
  checkInteger('nodeCount', nodeCount, 1, MAX_NODES);
  checkInteger('nodeRank', nodeRank, 0, nodeCount - 1);
  const firstRank = nodeRank * options.ranks;
  if (options.rawRank !== undefined) {
    checkInteger('rawRank', options.rawRank, firstRank, firstRank + options.ranks - 1);
  }
  if (nodeCount > 1 && master === undefined) {
    throw invalidArgument('master', master, 'host and port where node 0 listens: several nodes need it');
  }
  const token = nodeCount > 1 ? sharedToken(options) : randomBytes(32).toString('hex');
  return {
    settings: readSettings(options.settings, { ...process.env, ...options.env }),
    size: options.ranks * nodeCount,
    firstRank,
    token,
    // Of this node's launcher alone: names of files follow from it. Rank 0's makes the job id.
    jobPrefix: randomBytes(10).toString('hex'),
    launchId: randomBytes(16).toString('hex'),
    command: fullCommand(options.command),
  };
}

function checkInteger(name: string, value: number, min: number, max: number): void {
  if (!Number.isInteger(value) || value < min || value > max) {
    throw invalidArgument(name, value, `an integer from ${min} to ${max}`);
  }
}

function sharedToken({ env }: LaunchOptions): string {
  const token = env?.['WEFTLINE_TOKEN'] ?? process.env['WEFTLINE_TOKEN'];
  if (token !== undefined && token !== '') return token;
  throw new WeftlineError(
    'WL_CONFIG',
    'A job on several nodes listens on the network: set WEFTLINE_TOKEN to the same secret on all of them, for example from "openssl rand -hex 32"',
    { details: { variable: 'WEFTLINE_TOKEN' } },
  );
}

function fullCommand(command: readonly string[]): readonly string[] {
  const file = command[0];
  if (file === undefined || file === '') throw invalidArgument('command', command, 'a file and its arguments');
  return /\.[cm]?[jt]s$/.test(file) ? [process.execPath, ...command] : command;
}
