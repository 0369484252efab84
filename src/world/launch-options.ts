// What launch() takes and what it returns.
import type { OptionNames } from '../core/check-options.ts';
import type { Settings } from '../settings/settings.ts';
import type { RankFailure } from './first-failure.ts';
import type { OutputLine } from './output-lines.ts';
import type { RankResult } from './rank-process.ts';

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
  /** Where the launcher of node 0 listens, as the other nodes reach it. */
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
  readonly settings?: Partial<Settings>;
  /** Stops all ranks; launch() then rejects with the signal's reason. */
  readonly signal?: AbortSignal;
}

export const launchOptionNames: OptionNames<LaunchOptions> = {
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
  settings: true,
  signal: true,
};

/** How the ranks of a job ended. */
export interface LaunchResult {
  /**
   * 0 if the ranks of all nodes ended well, else that of the first failure: its exit code, or 128 and the signal's number. If a
   * signal that this process got stopped the job, 128 and its number, unless all ranks handled it and ended by themselves.
   */
  readonly exitCode: number;
  /** By rank; only those of this node. */
  readonly ranks: readonly RankResult[];
  /** The rank that failed first, on any node: the one that the failures of others follow from. */
  readonly firstFailure: RankFailure | undefined;
  readonly durationMs: number;
}
