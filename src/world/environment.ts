// Reads which rank this process is from the variables of weftline's launcher, torchrun, Slurm or Open MPI, in that order.
import { createHash, randomBytes } from 'node:crypto';
import { WeftlineError } from '../core/errors.ts';
import { quote } from '../core/quote.ts';

// Slurm's short form of host names: "node[01-03,7],login" is node01, node02, node03, node7, login.

const MAX_NODES = 65_536;

/** All names of a list, in its order. Fails with WL_CONFIG naming the variable that held it. */
export function expandNodeList(variable: string, list: string): string[] {
  const names = splitOutsideBrackets(list).flatMap((entry) => expandEntry(entry.trim()));
  if (names.length > 0 && names.length <= MAX_NODES && names.every((name) => /^[\w.:-]+$/.test(name))) return names;
  throw new WeftlineError(
    'WL_CONFIG',
    `Invalid environment variable ${variable}: expected a list of hosts such as node[01-04,7], got ${quote(list, 200)}`,
    { details: { variable, value: list } },
  );
}

function splitOutsideBrackets(list: string): string[] {
  return list.split(/,(?![^[]*\])/);
}

/** One entry may hold several brackets: rack[1-2]n[3-4]. An entry that is not well formed stays as it is. */
function expandEntry(entry: string): string[] {
  const match = /^([^[\]]*)\[([^[\]]+)\](.*)$/.exec(entry);
  if (match === null) return [entry];
  const [, head = '', ranges = '', tail = ''] = match;
  const tails = expandEntry(tail);
  const numbers = ranges.split(',').flatMap(expandRange);
  if (numbers.length * tails.length > MAX_NODES) return [entry];
  return numbers.flatMap((number) => tails.map((rest) => `${head}${number}${rest}`));
}

function expandRange(range: string): string[] {
  const match = /^([0-9]{1,9})-([0-9]{1,9})$/.exec(range.trim());
  if (match === null) return [/^[0-9]+$/.test(range.trim()) ? range.trim() : '['];
  const [, first = '', last = ''] = match;
  const count = Number(last) - Number(first) + 1;
  if (count < 1 || count > MAX_NODES) return ['['];
  return Array.from({ length: count }, (_, step) => String(Number(first) + step).padStart(first.length, '0'));
}

export type Environment = Readonly<Record<string, string | undefined>>;

export interface RankEnvironment {
  readonly source: 'weftline' | 'torchrun' | 'slurm' | 'openmpi' | 'single';
  readonly rank: number;
  readonly size: number;
  /** Counts of ranks per node, where the launcher has them; the world itself counts the ranks that share memory. */
  readonly localRank: number | undefined;
  readonly localSize: number | undefined;
  /** Address at which the store is served. */
  readonly host: string;
  readonly port: number;
  /** The shared secret; empty if none is given, which only a job on one host may do. */
  readonly token: string;
  /** What tells this job from others of the user where there is no token. It is no secret. */
  readonly scope: string;
  /** First part of the job id, [a-z0-9]{1,20}; rank 0 appends what makes it unique. */
  readonly jobPrefix: string;
  /** The process that started this one, if it is weftline's launcher. */
  readonly launcherPid: number | undefined;
  /** True if weftline's launcher serves the store; otherwise rank 0 does. */
  readonly launcherServes: boolean;
  /** Path at which ranks of weftline's launcher tell why they end. */
  readonly failureLog: string | undefined;
}

/** Marks every process of one launch, so that the launcher finds those that left its groups; join() does not read it. */
export const LAUNCH_ID_VARIABLE = 'WEFTLINE_LAUNCH_ID';

/** Range of derived ports, in the unprivileged ports below the ephemeral ones. */
const DERIVED_PORT_BASE = 15_000;
const DERIVED_PORT_COUNT = 15_000;
/** Ranks of one job. */
export const MAX_WORLD_SIZE = 1024;

/** Random bytes behind a prefix of 20 characters at most. */
const UNIQUE_BYTES = 5;

/** The id of a job, [a-z0-9]{1,32}, which tells it from others that have the same variables. */
export function uniqueJobId(jobPrefix: string): string {
  return jobPrefix + randomBytes(UNIQUE_BYTES).toString('hex');
}

/** Reads the first source that is there; without any, this is a world of one rank. Fails with WL_CONFIG naming the variable. */
export function readEnvironment(environment: Environment = process.env): RankEnvironment {
  const variables = new Variables(environment);
  if (variables.has('WEFTLINE_RANK') || variables.has('WEFTLINE_WORLD_SIZE')) return fromWeftline(variables);
  if (variables.has('RANK') && variables.has('WORLD_SIZE')) return fromTorchrun(variables);
  // A batch script outside of srun has SLURM_PROCID and SLURM_NTASKS too, but is alone.
  const inStep = variables.has('SLURM_STEP_ID') || variables.has('SLURM_STEP_NODELIST');
  if (inStep && variables.has('SLURM_PROCID')) return fromSlurm(variables);
  if (variables.has('OMPI_COMM_WORLD_RANK') && variables.has('OMPI_COMM_WORLD_SIZE')) return fromOpenMpi(variables);
  const none = { rank: 0, size: 1, localRank: 0, localSize: 1, host: '127.0.0.1', port: 0 };
  return finish(variables, { source: 'single', ...none, names: ['single'] });
}

/**
 * True if this process is a rank that weftline started, or one of several that another launcher started.
 * @param environment The variables; process.env by default.
 */
export function isRank(environment: Environment = process.env): boolean {
  const { source, size } = readEnvironment(environment);
  return source === 'weftline' || size > 1;
}

function fromWeftline(variables: Variables): RankEnvironment {
  const ranks = readRanks(variables, {
    rank: 'WEFTLINE_RANK',
    size: 'WEFTLINE_WORLD_SIZE',
    localRank: 'WEFTLINE_LOCAL_RANK',
    localSize: 'WEFTLINE_LOCAL_WORLD_SIZE',
  });
  const host = variables.text('WEFTLINE_MASTER_ADDR') ?? '127.0.0.1';
  const port = ranks.size === 1 ? 0 : variables.port('WEFTLINE_MASTER_PORT');
  // A rank that starts a job of its own passes these on with another address: they are not for that job.
  const master = `${variables.text('WEFTLINE_MASTER_ADDR')}:${variables.text('WEFTLINE_MASTER_PORT')}`;
  const launcherServes = variables.text('WEFTLINE_STORE') === master;
  return {
    ...finish(variables, { source: 'weftline', ...ranks, host, port, names: [host, port] }),
    launcherPid: variables.optionalInteger('WEFTLINE_LAUNCHER_PID', 1, 2 ** 31),
    launcherServes,
    failureLog: launcherServes ? variables.text('WEFTLINE_FAILURE_LOG') : undefined,
  };
}

function fromTorchrun(variables: Variables): RankEnvironment {
  const ranks = readRanks(variables, {
    rank: 'RANK',
    size: 'WORLD_SIZE',
    localRank: 'LOCAL_RANK',
    localSize: 'LOCAL_WORLD_SIZE',
  });
  const host = ranks.size === 1 ? '127.0.0.1' : variables.required('MASTER_ADDR');
  const given = ranks.size === 1 ? 0 : variables.port('MASTER_PORT');
  // torchrun's agent serves its own store on the port that it announces.
  const agentOwnsPort = variables.text('TORCHELASTIC_USE_AGENT_STORE')?.toLowerCase() === 'true';
  const port = agentOwnsPort && given > 0 ? given + 1 : given;
  const names = [variables.text('TORCHELASTIC_RUN_ID') ?? '', variables.text('TORCHELASTIC_RESTART_COUNT') ?? ''];
  return finish(variables, { source: 'torchrun', ...ranks, host, port, names: [...names, host, port] });
}

function fromSlurm(variables: Variables): RankEnvironment {
  const ranks = readRanks(variables, {
    rank: 'SLURM_PROCID',
    size: variables.has('SLURM_STEP_NUM_TASKS') ? 'SLURM_STEP_NUM_TASKS' : 'SLURM_NTASKS',
    localRank: 'SLURM_LOCALID',
  });
  const nodeCount = variables.text('SLURM_STEP_NUM_NODES') ?? variables.text('SLURM_NNODES');
  const listName = ['SLURM_STEP_NODELIST', 'SLURM_JOB_NODELIST', 'SLURM_NODELIST'].find((name) => variables.has(name));
  const host =
    variables.text('MASTER_ADDR') ??
    (nodeCount === '1' || ranks.size === 1
      ? '127.0.0.1'
      : expandNodeList(listName ?? 'SLURM_STEP_NODELIST', variables.required(listName ?? 'SLURM_STEP_NODELIST'))[0]);
  const names = ['slurm', variables.text('SLURM_JOB_ID') ?? '', variables.text('SLURM_STEP_ID') ?? ''];
  const port = derivedPort(variables, names);
  const localSize = nodeCount === '1' ? ranks.size : ranks.localSize;
  return finish(variables, { source: 'slurm', ...ranks, localSize, host: host ?? '127.0.0.1', port, names });
}

const NEEDS_MASTER = 'on several nodes it must name the host of rank 0 (mpirun -x MASTER_ADDR=HOST)';

function fromOpenMpi(variables: Variables): RankEnvironment {
  const ranks = readRanks(variables, {
    rank: 'OMPI_COMM_WORLD_RANK',
    size: 'OMPI_COMM_WORLD_SIZE',
    localRank: 'OMPI_COMM_WORLD_LOCAL_RANK',
    localSize: 'OMPI_COMM_WORLD_LOCAL_SIZE',
  });
  const host = ranks.localSize === ranks.size ? '127.0.0.1' : variables.required('MASTER_ADDR', NEEDS_MASTER);
  const job = ['PMIX_NAMESPACE', 'OMPI_MCA_ess_base_jobid', 'OMPI_MCA_orte_hnp_uri'];
  const names = ['openmpi', ...job.map((name) => variables.text(name) ?? '')];
  return finish(variables, { source: 'openmpi', ...ranks, host, port: derivedPort(variables, names), names });
}

interface RankNames {
  readonly rank: string;
  readonly size: string;
  readonly localRank?: string;
  readonly localSize?: string;
}

type Ranks = Pick<RankEnvironment, 'rank' | 'size' | 'localRank' | 'localSize'>;

function readRanks(variables: Variables, names: RankNames): Ranks {
  const size = variables.integer(names.size, 1, MAX_WORLD_SIZE);
  const rank = variables.integer(names.rank, 0, size - 1);
  const localSize = names.localSize === undefined ? undefined : variables.optionalInteger(names.localSize, 1, size);
  const localRank =
    names.localRank === undefined ? undefined : variables.optionalInteger(names.localRank, 0, (localSize ?? size) - 1);
  return { rank, size, localRank, localSize };
}

type Found = Omit<
  RankEnvironment,
  'token' | 'scope' | 'jobPrefix' | 'launcherPid' | 'launcherServes' | 'failureLog'
> & {
  /** What tells this job from others. */
  readonly names: readonly (string | number)[];
};

function finish(variables: Variables, { names, ...found }: Found): RankEnvironment {
  const job = variables.text('WEFTLINE_JOB_ID');
  if (job !== undefined && !/^[a-z0-9]{1,20}$/.test(job)) {
    throw variables.wrong('WEFTLINE_JOB_ID', '1 to 20 characters of a-z and 0-9');
  }
  // All ranks on one node: nothing needs to be reachable from outside.
  const host = found.localSize === found.size ? '127.0.0.1' : found.host;
  return {
    ...found,
    host,
    token: variables.text('WEFTLINE_TOKEN') ?? '',
    scope: digest(['scope', ...names]),
    jobPrefix: job ?? digest(['job', ...names]).slice(0, 12),
    launcherPid: undefined,
    launcherServes: false,
    failureLog: undefined,
  };
}

function derivedPort(variables: Variables, names: readonly (string | number)[]): number {
  if (variables.has('MASTER_PORT')) return variables.port('MASTER_PORT');
  return DERIVED_PORT_BASE + (Number.parseInt(digest(['port', ...names]).slice(0, 8), 16) % DERIVED_PORT_COUNT);
}

function digest(names: readonly (string | number)[]): string {
  return createHash('sha256')
    .update(JSON.stringify(['weftline', ...names]))
    .digest('hex');
}

/** Access to variables with errors that name them; an empty variable counts as absent. */
class Variables {
  readonly #environment: Environment;

  constructor(environment: Environment) {
    this.#environment = environment;
  }

  text(name: string): string | undefined {
    const value = this.#environment[name]?.trim();
    return value === '' ? undefined : value;
  }

  has(name: string): boolean {
    return this.text(name) !== undefined;
  }

  required(name: string, hint = 'it must be set on every rank'): string {
    const value = this.text(name);
    if (value !== undefined) return value;
    throw new WeftlineError('WL_CONFIG', `Environment variable ${name} is missing: ${hint}`, {
      details: { variable: name },
    });
  }

  integer(name: string, min: number, max: number): number {
    const text = this.required(name);
    const value = Number(text);
    if (/^[0-9]{1,10}$/.test(text) && value >= min && value <= max) return value;
    throw this.wrong(name, `an integer from ${min} to ${max}`);
  }

  optionalInteger(name: string, min: number, max: number): number | undefined {
    return this.has(name) ? this.integer(name, min, max) : undefined;
  }

  port(name: string): number {
    return this.integer(name, 1, 65_535);
  }

  wrong(name: string, expected: string): WeftlineError {
    const value = this.text(name);
    const got = value === undefined ? 'nothing' : quote(value);
    return new WeftlineError('WL_CONFIG', `Invalid environment variable ${name}: expected ${expected}, got ${got}`, {
      details: { variable: name, value, expected },
    });
  }
}
