// What the launcher decides before it starts anything: which ranks run here, under which token, job id and settings.
import { randomBytes } from 'node:crypto';
import { existsSync, statSync } from 'node:fs';
import { delimiter, resolve } from 'node:path';
import { checkOptions, type OptionNames } from '../core/check-options.ts';
import { checkSignal } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { packageFile } from '../core/package-file.ts';
import { quote } from '../core/quote.ts';
import type { Address } from '../meeting/dial.ts';
import { readSettings, type Settings, settingsTable } from '../settings/settings.ts';
import { LAUNCH_ID_VARIABLE, MAX_WORLD_SIZE } from './environment.ts';
import type { RankFailure } from './first-failure.ts';
import { ranksOfHosts } from './host-identity.ts';
import type { OutputLine, RankResult } from './rank-process.ts';

// What launch() takes and what it returns.

/** What launch() starts, and how many times. */
export interface LaunchOptions {
  /** What each rank runs: a file and its arguments. JavaScript and TypeScript files are run by this very node. */
  readonly command: readonly string[];
  /** Ranks on this node. */
  readonly ranks: number;
  /**
   * Further ranks of this node, behind the others, which run another command: those that `weftline run --aggregators` starts.
   * The same number on all nodes.
   */
  readonly helpers?: { readonly ranks: number; readonly command: readonly string[] };
  /** Nodes of the job, each with as many ranks and its own launcher; more than 1 needs `master` and WEFTLINE_TOKEN. */
  readonly nodeCount?: number;
  readonly nodeRank?: number;
  /** Address at which the launcher of node 0 listens, as the other nodes reach it. */
  readonly master?: { readonly host: string; readonly port: number };
  readonly cwd?: string;
  /** Added to this process's environment. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** A rank that uses this process's own input and output, without prefix. */
  readonly rawRank?: number;
  /** Takes the lines of the other ranks; by default they are printed as "[rank] line". */
  readonly onLine?: (line: OutputLine) => void;
  /** Takes the launcher's own messages on ranks that failed; by default they go to stderr. */
  readonly onNotice?: (text: string) => void;
  /** Takes the summary of a job that failed; by default it is a message like the others, the last one. */
  readonly onSummary?: (text: string, failure: RankFailure) => void;
  /** Passes SIGINT, SIGTERM and SIGHUP of this process on to the ranks; true by default. */
  readonly forwardSignals?: boolean;
  /**
   * A rank that ends badly is started again, at most so many times each, while the others go on; each time a message says why.
   * 0 (default): the job ends. On one node. The ranks hear of their number of starts by `world.life`.
   */
  readonly maxRestarts?: number;
  /**
   * The job goes on without ranks that end badly, and are not started again, as long as so many ranks of all nodes are left; and
   * without nodes whose launcher is lost, but node 0, which serves the store. It has ended well if so many ranks have. All
   * ranks by default. The same on all nodes. Not with `helpers`.
   */
  readonly minRanks?: number;
  readonly settings?: Partial<Settings>;
  /** Stops all ranks; launch() then rejects with the signal's reason. */
  readonly signal?: AbortSignal;
}

const launchOptionNames: OptionNames<LaunchOptions> = {
  command: true,
  ranks: true,
  helpers: true,
  nodeCount: true,
  nodeRank: true,
  master: true,
  cwd: true,
  env: true,
  rawRank: true,
  onLine: true,
  onNotice: true,
  onSummary: true,
  forwardSignals: true,
  maxRestarts: true,
  minRanks: true,
  settings: true,
  signal: true,
};

/** How the ranks of a job ended. */
export interface LaunchResult {
  /**
   * 0 if the ranks of all nodes ended well, or `minRanks` of them, else that of the first failure: its exit code, or 128 and the signal's number. If a
   * signal that this process got stopped the job, 128 and its number, unless all ranks handled it and ended by themselves.
   */
  readonly exitCode: number;
  /** Results by rank; only those of this node. */
  readonly ranks: readonly RankResult[];
  /** The rank that failed first, on any node: the one that the failures of others follow from. */
  readonly firstFailure: RankFailure | undefined;
  readonly durationMs: number;
}

/** Most restarts of one rank: a job that needs more has another problem. */
export const MAX_RESTARTS = 1_000_000;
const MAX_RESTART_PAUSE_MS = 5_000;

export interface JobPlan {
  readonly settings: Settings;
  readonly size: number;
  readonly firstRank: number;
  readonly token: string;
  readonly jobPrefix: string;
  /** Tells the processes of this launcher from all others. */
  readonly launchId: string;
  /** Ranks on this node, helpers among them. */
  readonly localSize: number;
  /** Command by rank of this node. */
  readonly commandOf: (local: number) => readonly string[];
}

/** Fails with WL_INVALID_ARGUMENT, WL_CONFIG, or WL_LAUNCH if there is no such program; nothing has been started then. */
export function planJob(options: LaunchOptions): JobPlan {
  checkOptions(options, launchOptionNames, 'options of launch');
  checkTypes(options);
  const { nodeCount = 1, nodeRank = 0, master } = options;
  checkInteger('ranks', options.ranks, 1, MAX_WORLD_SIZE);
  checkInteger('nodeCount', nodeCount, 1, MAX_WORLD_SIZE);
  checkInteger('nodeRank', nodeRank, 0, nodeCount - 1);
  const localSize = options.ranks + helperRanks(options);
  const size = localSize * nodeCount;
  if (size > MAX_WORLD_SIZE) {
    throw invalidArgument('ranks', `${localSize} on each of ${nodeCount} nodes`, `at most ${MAX_WORLD_SIZE} in all`);
  }
  const firstRank = nodeRank * localSize;
  if (options.rawRank !== undefined) {
    checkInteger('rawRank', options.rawRank, firstRank, firstRank + localSize - 1);
  }
  checkInteger('maxRestarts', options.maxRestarts ?? 0, 0, MAX_RESTARTS);
  if (options.maxRestarts && nodeCount > 1) {
    throw invalidArgument(
      'maxRestarts',
      options.maxRestarts,
      '0 with several nodes: ranks are started again on one node only',
    );
  }
  if (options.minRanks !== undefined) {
    checkInteger('minRanks', options.minRanks, 1, size);
    if (helperRanks(options) > 0) {
      throw invalidArgument('minRanks', options.minRanks, 'no such number with helpers, which no rank can do without');
    }
  }
  if (nodeCount > 1 && master === undefined) {
    throw invalidArgument('master', master, 'host and port where node 0 listens: several nodes need it');
  }
  const settings = readSettings(options.settings, { ...process.env, ...options.env });
  ranksOfHosts(settings.hosts, localSize);
  const token = nodeCount > 1 ? sharedToken(options) : randomBytes(32).toString('hex');
  return {
    settings,
    size,
    firstRank,
    token,
    // The prefix is this node's launcher's alone: names of files follow from it. Rank 0's makes the job id.
    jobPrefix: randomBytes(10).toString('hex'),
    launchId: randomBytes(16).toString('hex'),
    localSize,
    commandOf: commands(options),
  };
}

function helperRanks({ helpers }: LaunchOptions): number {
  if (helpers === undefined) return 0;
  checkOptions(helpers, helperNames, 'option helpers');
  checkInteger('helpers.ranks', helpers.ranks, 0, MAX_WORLD_SIZE);
  return helpers.ranks;
}

const helperNames: OptionNames<NonNullable<LaunchOptions['helpers']>> = { ranks: true, command: true };

function commands(options: LaunchOptions): JobPlan['commandOf'] {
  const { ranks, helpers } = options;
  const command = fullCommand(options);
  const ofHelpers = helperRanks(options) === 0 ? command : fullCommand({ ...options, ...helpers });
  return (local) => (local < ranks ? command : ofHelpers);
}

/** Checks what is handed on to the system, whose own errors name neither the option nor the value. */
function checkTypes({ cwd, env, master, signal }: LaunchOptions): void {
  if (cwd !== undefined && typeof cwd !== 'string') throw invalidArgument('cwd', cwd, 'the path of a folder');
  if (env !== undefined) {
    if (typeof env !== 'object' || env === null || Array.isArray(env)) {
      throw invalidArgument('env', env, 'an object of strings by name');
    }
    for (const [name, value] of Object.entries(env)) {
      if (value !== undefined && typeof value !== 'string') throw invalidArgument(`env.${name}`, value, 'a string');
    }
  }
  if (master !== undefined) {
    checkOptions(master, masterNames, 'option master');
    const { host, port } = master;
    if (typeof host !== 'string' || host === '') throw invalidArgument('master.host', host, 'a name or an address');
    checkInteger('master.port', port, 1, 65_535);
  }
  checkSignal(signal);
}

const masterNames: OptionNames<NonNullable<LaunchOptions['master']>> = { host: true, port: true };

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

/** JavaScript and TypeScript files are run by this very node. */
function fullCommand({ command, cwd = process.cwd(), env }: LaunchOptions): readonly string[] {
  const isText = Array.isArray(command) && command.every((part) => typeof part === 'string');
  const file = isText ? command[0] : undefined;
  if (file === undefined || file === '') throw invalidArgument('command', command, 'a file and its arguments');
  if (!isFolder(cwd)) throw cannotStart(file, `there is no folder ${quote(cwd)} to start it in`);
  const isScript = /\.[cm]?[jt]s$/.test(file);
  if (isScript || file.includes('/')) {
    const path = resolve(cwd, file);
    if (!existsSync(path)) throw cannotStart(file, `there is no file ${quote(path)}`);
    if (isFolder(path)) throw cannotStart(file, `${quote(path)} is a folder, expected a file`);
  } else if (!isInPath(file, cwd, env?.['PATH'] ?? process.env['PATH'])) {
    const hint = isFile(resolve(cwd, file)) ? `; to run the file in ${quote(cwd)}, give ./${file}` : '';
    throw cannotStart(file, `no folder of PATH has a program of this name, and it is no .js, .mjs or .ts file${hint}`);
  }
  return isScript ? [process.execPath, ...preload(), ...command] : command;
}

/** Other runtimes take other flags; their ranks note failures from join() on. */
function preload(): readonly string[] {
  const { bun, deno } = process.versions;
  if (bun !== undefined || deno !== undefined) return [];
  return ['--import', packageFile('./rank-preload.js', import.meta.url).href];
}

function isFolder(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
}

function isFile(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isFile() === true;
}

function isInPath(program: string, cwd: string, path = '/usr/bin:/bin'): boolean {
  return path.split(delimiter).some((folder) => isFile(resolve(cwd, folder, program)));
}

function cannotStart(file: string, why: string): WeftlineError {
  return new WeftlineError('WL_LAUNCH', `Cannot start ${quote(file)}: ${why}`, { details: { command: file } });
}

/** Pause before a restart: none before the first one, then longer and longer: what fails at once must not keep the machine busy. */
export function restartPauseMs(count: number): number {
  return count === 1 ? 0 : Math.min(MAX_RESTART_PAUSE_MS, 50 * 2 ** (count - 2));
}

/** What readEnvironment() reads in the process of a rank of this node; `store`: where it is served. */
export function variablesOfRank(plan: JobPlan, local: number, store: Address): Readonly<Record<string, string>> {
  return {
    WEFTLINE_RANK: String(plan.firstRank + local),
    WEFTLINE_WORLD_SIZE: String(plan.size),
    WEFTLINE_LOCAL_RANK: String(local),
    WEFTLINE_LOCAL_WORLD_SIZE: String(plan.localSize),
    WEFTLINE_MASTER_ADDR: store.host,
    WEFTLINE_MASTER_PORT: String(store.port),
    WEFTLINE_TOKEN: plan.token,
    WEFTLINE_JOB_ID: plan.jobPrefix,
    WEFTLINE_LAUNCHER_PID: String(process.pid),
    [LAUNCH_ID_VARIABLE]: plan.launchId,
    [settingsTable.hosts.env]: plan.settings.hosts,
    WEFTLINE_STORE: `${store.host}:${store.port}`,
  };
}
