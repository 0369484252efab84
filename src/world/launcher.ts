// Starts the ranks of a job on this node, passes their output on, and leaves nothing behind however the job ends.
import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { asWeftlineError, WeftlineError } from '../core/errors.ts';
import { printTo } from '../core/print.ts';
import { printableLines } from '../core/quote.ts';
import { tokenCredential } from '../meeting/credentials.ts';
import type { Address } from '../meeting/dial.ts';
import { uniqueJobId } from './environment.ts';
import { FailureLog, type FailureNote } from './failure-log.ts';
import {
  blamedBy,
  firstFailure,
  type FoundFailure,
  hasFailed,
  jobExitCode,
  type RankFailure,
  type SeenExit,
} from './first-failure.ts';
import { Interruption, type JobStop } from './interruption.ts';
import {
  type JobPlan,
  type LaunchOptions,
  type LaunchResult,
  planJob,
  restartPauseMs,
  variablesOfRank,
} from './job-plan.ts';
import { NodeLink } from './node-link.ts';
import { rankList } from './membership.ts';
import { describeEnd, LineWriter, type OutputLine, RankProcess, type RankResult } from './rank-process.ts';
import { listenTarget } from './rendezvous.ts';
import { filePrefixOf, removeFilesOfJob, SHARED_MEMORY_FOLDER } from './shared-memory-files.ts';
import { StoreHost } from './store-host.ts';
import { explainJobOnSignal } from './watching/job-text.ts';
import type { WatchedJob } from './watching/job-view.ts';
import { processIds, rankProcesses } from './watching/process-facts.ts';

// A tiny shell process that outlives a killed launcher: it then ends the ranks and removes the job's shared memory.

/**
 * Reads which process groups live from its input; the end of the input means that the launcher is gone, however it went.
 * It may have gone while it started a rank, of which this script then has not heard: the environment tells such ranks.
 * The second round finds what was between two system calls in the first: starting a program, creating a file.
 */
const script = `
trap "" INT TERM HUP QUIT
files=$1
mark=$2
folder=$3
groups=" "
while read -r word group; do
  case $word in
    add) groups="$groups$group " ;;
    remove) case $groups in *" $group "*) groups="\${groups%%" $group "*} \${groups#*" $group "}" ;; esac ;;
    done) exit 0 ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
for round in 1 2; do
  for path in $(grep -lsa "$mark" /proc/[0-9]*/environ); do
    pid=\${path#/proc/}
    kill -s KILL "\${pid%/environ}"
  done
  rm -f "$files"*
  [ -z "$folder" ] || rm -rf "$folder"
  [ $round = 2 ] || sleep 1
done
`;

class Watchdog {
  readonly #process: ChildProcess;

  /** `mark` is in the environment of all processes of this launcher, and of no others; `folder` is the launcher's own. */
  constructor(jobPrefix: string, mark: string, folder = '') {
    const files = `${SHARED_MEMORY_FOLDER}/${filePrefixOf(jobPrefix)}`;
    // A session of its own: a terminal's Ctrl-C or hang-up must not reach it.
    this.#process = spawn('/bin/sh', ['-c', script, 'weftline-watchdog', files, mark, folder], {
      detached: true,
      cwd: '/',
      env: { PATH: '/usr/bin:/bin' },
      stdio: ['pipe', 'ignore', 'ignore'],
    });
    // There is no watchdog if there is no shell; the ranks that joined still end with their launcher.
    this.#process.on('error', () => {});
    this.#process.stdin?.on('error', () => {});
    this.#process.unref();
  }

  add(group: number): void {
    this.#process.stdin?.write(`add ${group}\n`);
  }

  remove(group: number): void {
    this.#process.stdin?.write(`remove ${group}\n`);
  }

  /** The launcher has cleaned up itself. */
  dismiss(): void {
    this.#process.stdin?.end('done\n');
  }
}

// What a launcher knows of failures of its ranks: what they noted, in which order they ended, and what of it counts no more.

export class JobFailures {
  readonly #log: FailureLog;
  readonly #exits: SeenExit[] = [];
  /** Number of notes when each rank was started again. */
  readonly #startedAgain = new Map<number, number>();

  constructor(log: FailureLog) {
    this.#log = log;
  }

  /** The process of the rank was just seen to have ended. */
  ended(rank: number): void {
    this.#exits.push({ rank, notes: this.#log.read().length });
  }

  /** The rank gets another process; what the last one noted concerns the job no more. */
  startsAgain(rank: number): void {
    this.#startedAgain.set(rank, this.#log.read().length);
  }

  /** Notes but for those of ranks that were started again since. */
  notes(): FailureNote[] {
    const isOld = ({ rank }: FailureNote, at: number): boolean => at < (this.#startedAgain.get(rank) ?? 0);
    // The place of a note counts, so it is no note of any rank rather than none.
    return this.#log.read().map((note, at) => (isOld(note, at) ? { ...note, rank: -1 } : note));
  }

  /**
   * The first failure among ranks of this node that have ended. `helpers`: ranks of it that nobody needs any more. One of
   * them that lost ranks of another node has not failed, nor has one that lost those; if ranks of another node failed by
   * themselves, their launcher tells of it.
   */
  among(ends: readonly RankResult[], helpers: ReadonlySet<number>, own: ReadonlySet<number>): FoundFailure | undefined {
    const notes = this.notes();
    const excused = new Set<number>();
    const isExcused = ({ rank }: RankResult): boolean => {
      const because = helpers.has(rank) ? blamedBy(rank, notes) : [];
      return because.length > 0 && because.every((lost) => !own.has(lost) || excused.has(lost));
    };
    // Each one may excuse others.
    for (let known = -1; known < excused.size;) {
      known = excused.size;
      for (const end of ends) if (isExcused(end)) excused.add(end.rank);
    }
    const counting = ends.filter(({ rank }) => !excused.has(rank));
    return firstFailure(counting, notes, this.#exits);
  }
}

/**
 * Runs one process per rank and waits for all of them. When one ends badly the others get `settings.graceMs` to report
 * their own error, then SIGTERM, then SIGKILL. Afterwards no process of the job and no file of it in /dev/shm is left.
 * With several nodes it waits for the ranks of all of them, and a failure on one ends all. Fails with WL_INVALID_ARGUMENT,
 * WL_CONFIG, WL_LAUNCH if a process cannot be started, WL_TIMEOUT or WL_PEER_LOST if the launcher of a node does not come
 * or is lost.
 * @param options The command, how many ranks, on how many nodes.
 */
export async function launch(options: LaunchOptions): Promise<LaunchResult> {
  const plan = planJob(options);
  options.signal?.throwIfAborted();
  const job = new Job(options, plan);
  try {
    await job.start();
    return await job.finish();
  } catch (error) {
    return job.endStopped(error);
  } finally {
    await job.clean();
  }
}

class Job {
  readonly #options: LaunchOptions;
  readonly #plan: JobPlan;
  readonly #log: FailureLog;
  readonly #failures: JobFailures;
  readonly #watchdog: Watchdog;
  readonly #started = performance.now();
  readonly #ranks: RankProcess[] = [];
  readonly #output: Promise<void>[] = [];
  readonly #timers: NodeJS.Timeout[] = [];
  readonly #writers: LineWriter[] = [];
  readonly #interruption: Interruption;
  readonly #abort = () => {
    this.#over.abort(this.#options.signal?.reason);
    this.#stopAll(0);
  };
  #stopping = false;
  #awaitsHelpers = false;
  /** The ranks of all nodes have ended well but for helpers, which launchers are about to stop. */
  #areOnlyHelpersLeft = false;
  #stopExplaining: () => void = () => {};
  /** True once the other nodes know how this one ended. */
  #isComplete = false;
  #storeHost: StoreHost | undefined;
  #nodes: Promise<NodeLink> | undefined;
  /** Failure of another node, or of the launchers among themselves. */
  #remoteFailure: RankFailure | undefined;
  #reported: Promise<RankFailure> | undefined;
  readonly #ended: RankResult[] = [];
  /** Starts of each rank after the first one. */
  readonly #restarts = new Map<number, number>();
  #restarting: Promise<void> = Promise.resolve();
  /** Ranks of this node that live and that the others go on without. */
  readonly #leftOut = new Set<number>();
  /** Whether the job goes on is being found out, see #goOnWithout(). */
  #deciding: Promise<unknown> = Promise.resolve();
  #startAgain: (local: number) => Promise<void> = () => Promise.resolve();
  /** Aborted when nothing is awaited from the other nodes any more. */
  readonly #over = new AbortController();

  constructor(options: LaunchOptions, plan: JobPlan) {
    this.#options = options;
    this.#plan = plan;
    this.#log = new FailureLog(plan.jobPrefix);
    this.#failures = new JobFailures(this.#log);
    this.#watchdog = new Watchdog(plan.jobPrefix, plan.launchId, this.#log.folder);
    this.#interruption = new Interruption({
      stopMs: plan.settings.stopMs,
      ranks: () => this.#ranks,
      notice: (text) => this.#notice(text),
      leave: (signal) => this.#over.abort(new WeftlineError('WL_LAUNCH', `The launcher was interrupted by ${signal}`)),
    });
    options.signal?.addEventListener('abort', this.#abort);
    if (options.forwardSignals !== false) this.#interruption.listen();
  }

  async start(): Promise<void> {
    const { nodeCount = 1 } = this.#options;
    const { localSize } = this.#plan;
    const address = await this.#serve();
    this.#explainOnSignal(address);
    if (nodeCount > 1) this.#meetNodes(address);
    const print = this.#printer();
    this.#startAgain = (local) => this.#startRank(local, { address, print });
    for (let local = 0; local < localSize; local += 1) {
      if (this.#interruption.isUnderWay) return;
      this.#over.signal.throwIfAborted();
      await this.#startRank(local, { address, print });
    }
  }

  async finish(): Promise<LaunchResult> {
    const ranks = await this.#allEnded();
    // The rest of the output; a process that left its group may hold the pipe open for ever.
    const timer = setTimeout(() => this.#closePipes(), 1_000);
    await Promise.all(this.#output);
    clearTimeout(timer);
    this.#options.signal?.throwIfAborted();
    const failure = await this.#jobFailure(ranks);
    this.#isComplete = true;
    const isWhole = this.#ranks.length === this.#plan.localSize;
    const stop = isWhole ? failure && this.#interruption.stopOf(failure, ranks) : this.#interruption.stop;
    return this.#result(ranks, failure, stop);
  }

  /** Result after an error: what is missing once a signal has ended the job is no failure of its own. */
  endStopped(error: unknown): LaunchResult {
    const { stop } = this.#interruption;
    if (stop === undefined || this.#options.signal?.aborted === true) throw error;
    return this.#result(this.#ended, undefined, stop);
  }

  #result(ranks: readonly RankResult[], failure?: RankFailure, stop?: JobStop): LaunchResult {
    if (stop !== undefined) this.#notice(stop.summary);
    else if (failure !== undefined) this.#summarize(failureSummary(failure, ranks, this.#failures.notes()), failure);
    const exitCode = stop?.exitCode ?? jobExitCode(failure);
    return { exitCode, ranks, firstFailure: failure, durationMs: performance.now() - this.#started };
  }

  /** Resolves when all have ended, those that were started again meanwhile among them. */
  async #allEnded(): Promise<RankResult[]> {
    for (;;) {
      const ranks = [...this.#ranks];
      const ended = await Promise.all(ranks.map((rank) => rank.ended));
      await this.#restarting;
      await this.#deciding;
      if (ranks.every((rank, at) => rank === this.#ranks[at])) return ended;
    }
  }

  /** Whatever happened: no process, no file, no listener is left. */
  async clean(): Promise<void> {
    this.#stopExplaining();
    this.#stopping = true;
    // A rank could otherwise start behind the loop that ends them.
    await this.#restarting;
    for (const timer of this.#timers) clearTimeout(timer);
    for (const rank of this.#ranks) rank.stop('SIGKILL');
    await Promise.all(this.#ranks.map((rank) => rank.ended));
    await endMarkedProcesses(this.#plan.launchId);
    await this.#leaveNodes();
    this.#closePipes();
    for (const writer of this.#writers) writer[Symbol.dispose]();
    removeFilesOfJob(this.#plan.jobPrefix);
    this.#log[Symbol.dispose]();
    this.#watchdog.dismiss();
    this.#options.signal?.removeEventListener('abort', this.#abort);
    this.#interruption[Symbol.dispose]();
  }

  /** Starts the store, in a thread that goes on whatever happens to rank 0; returns where it is. */
  async #serve(): Promise<Address> {
    const { nodeCount = 1, nodeRank = 0, master } = this.#options;
    const { size, token, settings, jobPrefix } = this.#plan;
    const address = nodeCount === 1 || master === undefined ? { host: '127.0.0.1', port: 0 } : master;
    if (nodeRank > 0 || size === 1) return address;
    const { storeMaxValueBytes: maxValueBytes, maxStrangers, greetingMs, timeoutMs } = settings;
    this.#storeHost = await StoreHost.start({
      listen: listenTarget(address.host, address.port),
      size,
      nodeCount: nodeCount === 1 ? 0 : nodeCount,
      credential: tokenCredential(token),
      jobId: uniqueJobId(jobPrefix),
      jobPrefix,
      maxValueBytes,
      elastic: (this.#options.maxRestarts ?? 0) > 0,
      settings: { maxStrangers, greetingMs, timeoutMs },
      onLeftOut: (ranks) => {
        for (const rank of ranks) this.#leaveOut(rank);
      },
    });
    return { ...address, port: this.#storeHost.port };
  }

  #meetNodes({ host, port }: Address): void {
    const { nodeCount = 1, nodeRank = 0 } = this.#options;
    const { token, settings } = this.#plan;
    const { signal } = this.#over;
    const answer = (): unknown => ({ processes: rankProcesses(this.#ranks) });
    const { minRanks } = this.#options;
    const goesOnWithout = async (node: number): Promise<boolean> => {
      const left = await this.#ranksLeft(0);
      if (left < minRanks!) return false;
      this.#notice(`node ${node} is lost; ${goesOn(left, minRanks!)}`);
      return true;
    };
    const losing = minRanks === undefined ? {} : { goesOnWithout };
    this.#nodes = NodeLink.connect({ host, port, nodeRank, nodeCount, token, settings, signal, answer, ...losing });
    this.#nodes
      .then((link) => {
        this.#interruption.join(link);
        this.#hearWhoIsLeftOut(link);
        return link.failure();
      })
      .then((failure) => {
        this.#remoteFailure = failure;
        this.#stopAll(settings.graceMs);
      })
      // There is no job if the other nodes are missing; finish() says why.
      .catch(() => this.#over.signal.aborted || this.#stopAll(settings.graceMs));
  }

  /** The first failure on any node, once the ranks of this node have ended; undefined if all ranks of all nodes ended well. */
  async #jobFailure(ranks: readonly RankResult[]): Promise<RankFailure | undefined> {
    const found = this.#failureAmong(ranks);
    const { minRanks } = this.#options;
    const isBad = found !== undefined && (minRanks === undefined || this.#stopping || this.#interruption.isUnderWay);
    if (this.#nodes === undefined) return isBad ? found : undefined;
    if (isBad) return this.#reportedFailure(found);
    if (this.#remoteFailure !== undefined) return this.#remoteFailure;
    const link = await this.#nodes;
    return Promise.race([link.failure(), link.allEnded().then(() => undefined)]);
  }

  #failureAmong(ends: readonly RankResult[]): FoundFailure | undefined {
    const own = this.#ranks.map(({ rank }) => rank);
    const helpers = this.#areOnlyHelpersLeft ? own.filter((rank) => this.#isHelper(rank)) : [];
    return this.#failures.among(ends, new Set(helpers), new Set(own));
  }

  async #reportedFailure(own: FoundFailure): Promise<RankFailure> {
    const { graceMs, stopMs } = this.#plan.settings;
    try {
      const link = await this.#nodes;
      // The node whose rank was the first tells of it as soon as that rank has ended.
      if (own.blamesOthers) await link?.failureWithin(graceMs + stopMs);
      return (await link?.report(own)) ?? own;
    } catch (error) {
      const { code, message } = asWeftlineError(error);
      // The failure cannot be reported to the other nodes; ranks that failed because of that are not the reason.
      if (own.blamesOthers || code === 'WL_RANK_TAKEN') throw error;
      this.#notice(printableLines(message));
      return own;
    }
  }

  async #leaveNodes(): Promise<void> {
    this.#over.abort();
    const link = await this.#nodes?.catch(() => undefined);
    await link?.close(this.#isComplete ? undefined : new WeftlineError('WL_LAUNCH', 'the launcher was stopped'));
    const { graceMs, stopMs } = this.#plan.settings;
    // The others have been told why, and stop their own ranks.
    const waitMs = this.#nodes === undefined ? 0 : Math.min(graceMs + 2 * stopMs, this.#interruption.patienceMs);
    await this.#storeHost?.stop(waitMs);
  }

  async #startRank(local: number, { address, print }: RankStart): Promise<void> {
    const { firstRank, commandOf } = this.#plan;
    const rank = firstRank + local;
    const raw = this.#options.rawRank === rank;
    const started = await RankProcess.start({
      rank,
      command: commandOf(local),
      cwd: this.#options.cwd,
      raw,
      onExit: (ended) => this.#failures.ended(ended),
      env: {
        ...process.env,
        ...this.#options.env,
        ...variablesOfRank(this.#plan, local, address),
        WEFTLINE_FAILURE_LOG: this.#log.path,
      },
    });
    this.#watchdog.add(started.pid);
    this.#ranks[local] = started;
    this.#interruption.started(started);
    this.#output.push(started.readLines((stream, line) => print(rank, stream, line)));
    void started.ended.then((result) => this.#rankEnded(result));
  }

  #printer(): (rank: number, stream: OutputLine['stream'], line: Buffer) => Promise<void> | void {
    const { onLine } = this.#options;
    if (onLine !== undefined) return (rank, stream, line) => onLine({ rank, stream, text: line.toString('utf8') });
    const writers = { stdout: new LineWriter(process.stdout), stderr: new LineWriter(process.stderr) };
    this.#writers.push(writers.stdout, writers.stderr);
    return (rank, stream, line) => writers[stream].write(`[${rank}] `, line);
  }

  #rankEnded(result: RankResult): void {
    this.#watchdog.remove(result.pid);
    this.#ended.push(result);
    this.#interruption.ended();
    this.#endLeftOut();
    if (result.stopped) return;
    if (result.exitCode === 0) return this.#endHelpers();
    if (this.#restart(result)) return;
    const decided = this.#goOnWithout(result);
    this.#deciding = Promise.all([this.#deciding, decided]);
  }

  /** The rank has ended badly: the job ends, unless enough ranks are left. */
  async #goOnWithout({ rank, exitCode, signal }: RankResult): Promise<void> {
    const { minRanks } = this.#options;
    if (minRanks !== undefined && !this.#stopping && !this.#interruption.isUnderWay) {
      // Other nodes that cannot be asked are the end of the job anyway.
      const left = await this.#ranksLeft(1).catch(() => 0);
      if (left >= minRanks) {
        const error = this.#failures.notes().findLast((note) => note.rank === rank)?.error?.message;
        const reason = `rank ${rank} ended with ${describeEnd({ exitCode, signal })}${error === undefined ? '' : `: ${error}`}`;
        return this.#notice(printableLines(`${reason}; ${goesOn(left, minRanks)}`));
      }
    }
    this.#stopAll(this.#plan.settings.graceMs);
    this.#tellNodes();
  }

  /** The rank lives, and the others have made a group without it. */
  #leaveOut(rank: number): void {
    const { firstRank, localSize } = this.#plan;
    const isHere = rank >= firstRank && rank < firstRank + localSize;
    if (!isHere) return void this.#nodes?.then((link) => link.tellLeftOut(rank)).catch(() => {});
    this.#leftOut.add(rank);
    this.#endLeftOut();
  }

  #hearWhoIsLeftOut(link: NodeLink): void {
    const { nodeRank = 0 } = this.#options;
    const { firstRank, localSize } = this.#plan;
    if (nodeRank === 0) return;
    for (let rank = firstRank; rank < firstRank + localSize; rank += 1) {
      link
        .leftOut(rank)
        .then(() => this.#leaveOut(rank))
        .catch(() => {});
    }
  }

  /** Ranks that were left out, and perhaps hang, do not keep the job: once they alone are left here, they have the time of a wait to end. */
  #endLeftOut(): void {
    const { timeoutMs, stopMs } = this.#plan.settings;
    if (!this.#areLeftOut()) return;
    const stop = (signal: NodeJS.Signals): void => {
      if (this.#areLeftOut()) for (const rank of this.#ranks) rank.stop(signal);
    };
    this.#timers.push(setTimeout(() => stop('SIGTERM'), timeoutMs));
    this.#timers.push(setTimeout(() => stop('SIGKILL'), timeoutMs + stopMs));
  }

  /** True if ranks of this node still run, and all of those were left out. */
  #areLeftOut(): boolean {
    const running = this.#ranks.filter((rank) => rank.running);
    return running.length > 0 && running.every(({ rank }) => this.#leftOut.has(rank));
  }

  /** Ranks of all nodes that have not failed; `failed`: how many more of this node have. */
  async #ranksLeft(failed: number): Promise<number> {
    const { size, localSize } = this.#plan;
    if (this.#nodes !== undefined) return size - (await (await this.#nodes).countFailed(failed, localSize));
    return size - this.#ended.filter(({ exitCode }) => exitCode !== 0).length;
  }

  #isHelper(rank: number): boolean {
    return rank - this.#plan.firstRank >= this.#options.ranks;
  }

  /** Once the others have ended well, on all nodes, helpers end by themselves, unless they wait for ranks that never joined. */
  #endHelpers(): void {
    const { ranks, helpers } = this.#options;
    const isDone = ({ rank, exitCode }: RankResult): boolean => exitCode === 0 && !this.#isHelper(rank);
    if (helpers === undefined || this.#ended.filter(isDone).length < ranks || this.#awaitsHelpers) return;
    this.#awaitsHelpers = true;
    // All ranks are stopped anyway if another node fails or is lost.
    this.#stopHelpers().catch(() => {});
  }

  async #stopHelpers(): Promise<void> {
    const link = await this.#nodes;
    await link?.onlyHelpersLeft();
    this.#areOnlyHelpersLeft = true;
    // Once one launcher stops its helpers, those of other nodes lose them: all launchers must know by then why.
    await link?.helpersMayEnd();
    this.#stopAll(this.#plan.settings.graceMs);
  }

  /**
   * True if the rank is started again. Not once another rank has ended well: the job is over then, and nobody is there to join.
   */
  #restart({ rank, exitCode, signal }: RankResult): boolean {
    const { maxRestarts = 0 } = this.#options;
    const count = (this.#restarts.get(rank) ?? 0) + 1;
    const isOver = this.#stopping || this.#interruption.isUnderWay || this.#ended.some((end) => end.exitCode === 0);
    if (count > maxRestarts || isOver) return false;
    this.#ended.pop();
    const error = this.#failures.notes().findLast((note) => note.rank === rank)?.error?.message;
    this.#restarts.set(rank, count);
    this.#failures.startsAgain(rank);
    this.#leftOut.delete(rank);
    const reason = `rank ${rank} ended with ${describeEnd({ exitCode, signal })}${error === undefined ? '' : `: ${error}`}`;
    this.#notice(printableLines(`${reason}; it is started again (${count} of ${maxRestarts})`));
    this.#restarting = this.#restarting
      .then(() => sleep(restartPauseMs(count)))
      .then(() =>
        this.#stopping || this.#interruption.isUnderWay ? undefined : this.#startAgain(rank - this.#plan.firstRank),
      )
      .catch((failure: unknown) => {
        this.#notice(printableLines(asWeftlineError(failure).message));
        this.#stopAll(this.#plan.settings.graceMs);
      });
    return true;
  }

  /** The other nodes need not wait until all ranks of this one have ended. */
  #tellNodes(): void {
    const found = this.#failureAmong(this.#ended);
    if (found === undefined || found.blamesOthers || this.#nodes === undefined) return;
    this.#reported ??= this.#nodes.then((link) => link.report(found));
    this.#reported.catch(() => {});
  }

  /** SIGTERM after a grace time, SIGKILL some seconds later. Interrupted ranks have been told and may be saving their work. */
  #stopAll(graceMs: number): void {
    if (this.#stopping || this.#interruption.isUnderWay) return;
    this.#stopping = true;
    const stop = (signal: NodeJS.Signals) => {
      for (const rank of this.#ranks) rank.stop(signal);
    };
    this.#timers.push(setTimeout(() => stop('SIGTERM'), graceMs));
    this.#timers.push(setTimeout(() => stop('SIGKILL'), graceMs + this.#plan.settings.stopMs));
  }

  #explainOnSignal(address: Address): void {
    if (this.#options.forwardSignals === false) return;
    const { jobPrefix: prefix, size, token } = this.#plan;
    const job = (): WatchedJob => ({
      prefix,
      address: { ...address, token, scope: '' },
      size,
      pids: new Map(this.#ranks.map(({ rank, pid }) => [rank, pid])),
      launchers: [process.pid],
    });
    this.#stopExplaining = explainJobOnSignal(job, (text) => printTo(process.stderr, `weftline: ${text}`));
  }

  #summarize(text: string, failure: RankFailure): void {
    const { onSummary } = this.#options;
    if (onSummary === undefined) this.#notice(text);
    else onSummary(text, failure);
  }

  #notice(text: string): void {
    if (this.#options.onNotice === undefined) printTo(process.stderr, `weftline: ${text}\n`);
    else this.#options.onNotice(text);
  }

  #closePipes(): void {
    for (const rank of this.#ranks) rank.closePipes();
  }
}

function goesOn(left: number, minRanks: number): string {
  return `the job goes on with ${left} ranks, at least ${minRanks}`;
}

interface RankStart {
  readonly address: Address;
  readonly print: (rank: number, stream: OutputLine['stream'], line: Buffer) => Promise<void> | void;
}

/** A few lines, however many ranks there are. */
export function failureSummary(
  first: RankFailure,
  ranks: readonly RankResult[],
  notes: readonly FailureNote[],
): string {
  const { rank, pid, host, error } = first;
  const when = new Date(first.time).toISOString();
  const lines = [
    `the job failed: rank ${rank} (process ${pid} on ${host}) ended with ${describeEnd(first)} at ${when}`,
  ];
  if (error !== undefined) {
    const [message = ''] = error.message.split('\n');
    lines.push(`  first error: ${error.code === undefined ? '' : `${error.code}: `}${message}`);
  }
  // It may be another rank that did not fail but was late, or is stopped.
  const because = blamedBy(rank, notes);
  if (because.length > 0) lines.push(`  because of ${rankList(because)}`);
  const others = ranks.filter((other) => other.rank !== rank);
  const groups = new Map<string, number[]>();
  for (const other of others.filter((end) => hasFailed(end, notes))) {
    const noted = notes.find((note) => note.rank === other.rank)?.error;
    const how = noted?.code ?? (other.stopped ? 'an error' : describeEnd(other));
    groups.set(how, [...(groups.get(how) ?? []), other.rank]);
  }
  for (const [how, members] of groups) lines.push(`  failed after it, ${how}: ${rankList(members)}`);
  const stopped = others.filter((end) => end.stopped && !hasFailed(end, notes));
  if (stopped.length > 0) lines.push(`  stopped: ${rankList(stopped.map((end) => end.rank))}`);
  return printableLines(lines.join('\n'));
}

// Finds the processes that a job left behind outside of its process groups, by a mark in their environment.

/** Kills them and looks again until none is left. Linux only; elsewhere only process groups are ended. */
async function endMarkedProcesses(mark: string): Promise<void> {
  for (let pause = 1; pause < 500; pause *= 2) {
    const pids = processIds().filter((pid) => pid !== process.pid && hasMark(pid, mark));
    if (pids.length === 0) return;
    for (const pid of pids) kill(pid);
    await sleep(pause);
  }
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // It ended meanwhile.
  }
}

function hasMark(pid: number, mark: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'latin1').includes(mark);
  } catch {
    // Another user's, or it ended meanwhile.
    return false;
  }
}
