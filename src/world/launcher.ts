// Starts the ranks of a job on this node, passes their output on, and leaves nothing behind however the job ends.
import { createServer, type Server } from 'node:net';
import { LAUNCH_ID_VARIABLE } from './environment.ts';
import { WeftlineError } from '../core/errors.ts';
import { settingsTable } from '../settings/settings.ts';
import { type JobPlan, planJob } from './job-plan.ts';
import type { LaunchOptions, LaunchResult } from './launch-options.ts';
import { endMarkedProcesses } from './marked-processes.ts';
import { rankList } from './rank-list.ts';
import { eachLine, LineWriter, type OutputLine } from './output-lines.ts';
import { describeEnd, exitCodeOf, RankProcess, type RankResult } from './rank-process.ts';
import { removeFilesOfJob } from './shared-memory-files.ts';
import { Watchdog } from './watchdog.ts';

const STORE_FD = 3;
/** How long a rank may take to end after SIGTERM, or after the user's own signal. */
const STOP_MS = 5_000;
const forwarded = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/**
 * Runs one process per rank and waits for all of them. When one ends badly the others get `settings.graceMs` to report
 * their own error, then SIGTERM, then SIGKILL. Afterwards no process of the job and no file of it in /dev/shm is left.
 * Fails with WL_INVALID_ARGUMENT, WL_CONFIG, and WL_LAUNCH if a process cannot be started.
 */
export async function launch(options: LaunchOptions): Promise<LaunchResult> {
  const plan = planJob(options);
  options.signal?.throwIfAborted();
  const job = new Job(options, plan);
  try {
    await job.start();
    return await job.finish();
  } finally {
    await job.clean();
  }
}

class Job {
  readonly #options: LaunchOptions;
  readonly #plan: JobPlan;
  readonly #watchdog: Watchdog;
  readonly #started = performance.now();
  readonly #ranks: RankProcess[] = [];
  readonly #output: Promise<void>[] = [];
  readonly #timers: NodeJS.Timeout[] = [];
  readonly #writers: LineWriter[] = [];
  readonly #forward = (signal: NodeJS.Signals) => this.#interrupt(signal);
  readonly #abort = () => this.#stopAll(0);
  #stopping = false;
  #interrupted = false;
  #firstFailure: RankResult | undefined;

  constructor(options: LaunchOptions, plan: JobPlan) {
    this.#options = options;
    this.#plan = plan;
    this.#watchdog = new Watchdog(plan.jobPrefix, plan.launchId);
    options.signal?.addEventListener('abort', this.#abort);
    if (options.forwardSignals !== false) for (const signal of forwarded) process.on(signal, this.#forward);
  }

  async start(): Promise<void> {
    const { ranks, nodeCount = 1, master } = this.#options;
    // One node: the socket is made here and inherited by rank 0, so that nobody can take the port in between.
    const server = nodeCount === 1 && ranks > 1 ? await listen() : undefined;
    try {
      const address = nodeCount === 1 || master === undefined ? { host: '127.0.0.1', port: portOf(server) } : master;
      const print = this.#printer();
      for (let local = 0; local < ranks; local += 1) await this.#startRank(local, { address, server, print });
    } finally {
      server?.close();
    }
  }

  async finish(): Promise<LaunchResult> {
    const ranks = await Promise.all(this.#ranks.map((rank) => rank.ended));
    // The rest of the output; a process that left its group may hold the pipe open for ever.
    const timer = setTimeout(() => this.#closePipes(), 1_000);
    await Promise.all(this.#output);
    clearTimeout(timer);
    this.#options.signal?.throwIfAborted();
    const firstFailure = this.#firstFailure;
    return {
      exitCode: firstFailure === undefined ? 0 : exitCodeOf(firstFailure),
      ranks,
      firstFailure,
      durationMs: performance.now() - this.#started,
    };
  }

  /** Whatever happened: no process, no file, no listener is left. */
  async clean(): Promise<void> {
    for (const timer of this.#timers) clearTimeout(timer);
    for (const rank of this.#ranks) rank.stop('SIGKILL');
    await Promise.all(this.#ranks.map((rank) => rank.ended));
    await endMarkedProcesses(this.#plan.launchId);
    this.#closePipes();
    for (const writer of this.#writers) writer[Symbol.dispose]();
    removeFilesOfJob(this.#plan.jobPrefix);
    this.#watchdog.dismiss();
    this.#options.signal?.removeEventListener('abort', this.#abort);
    for (const signal of forwarded) process.off(signal, this.#forward);
  }

  async #startRank(local: number, { address, server, print }: RankStart): Promise<void> {
    const { firstRank, size, token, jobPrefix, launchId, command, settings } = this.#plan;
    const rank = firstRank + local;
    const holdsStore = rank === 0 && server !== undefined;
    const raw = this.#options.rawRank === rank;
    const started = await RankProcess.start({
      rank,
      command,
      cwd: this.#options.cwd,
      raw,
      socket: holdsStore ? descriptorOf(server) : undefined,
      env: {
        ...process.env,
        ...this.#options.env,
        WEFTLINE_RANK: String(rank),
        WEFTLINE_WORLD_SIZE: String(size),
        WEFTLINE_LOCAL_RANK: String(local),
        WEFTLINE_LOCAL_WORLD_SIZE: String(this.#options.ranks),
        WEFTLINE_MASTER_ADDR: address.host,
        WEFTLINE_MASTER_PORT: String(address.port),
        WEFTLINE_TOKEN: token,
        WEFTLINE_JOB_ID: jobPrefix,
        WEFTLINE_LAUNCHER_PID: String(process.pid),
        [LAUNCH_ID_VARIABLE]: launchId,
        [settingsTable.hosts.env]: settings.hosts,
        // Undefined removes what a launcher around this one may have set.
        WEFTLINE_STORE_FD: holdsStore ? String(STORE_FD) : undefined,
      },
    });
    this.#watchdog.add(started.pid);
    this.#ranks.push(started);
    for (const stream of ['stdout', 'stderr'] as const) {
      const source = started.child[stream];
      if (source === null) continue;
      // A pipe that clean() had to close ends with an error of no interest.
      this.#output.push(eachLine(source, (line) => print(rank, stream, line)).catch(() => {}));
    }
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
    if ((result.exitCode === 0 && result.signal === null) || result.stopped) return;
    this.#firstFailure ??= result;
    // Interrupted ranks have been told already and may be saving their work.
    if (this.#interrupted) return this.#stopAll(STOP_MS);
    const running = this.#ranks.filter((rank) => rank.running).map(({ rank }) => rank);
    const rest = this.#firstFailure === result && running.length > 0 ? `; stopping ${rankList(running)}` : '';
    this.#notice(`rank ${result.rank} (process ${result.pid}) ended with ${describeEnd(result)}${rest}`);
    this.#stopAll(this.#plan.settings.graceMs);
  }

  /** SIGTERM after a grace time, SIGKILL some seconds later. */
  #stopAll(graceMs: number): void {
    if (this.#stopping) return;
    this.#stopping = true;
    const stop = (signal: NodeJS.Signals) => {
      for (const rank of this.#ranks) rank.stop(signal);
    };
    this.#timers.push(setTimeout(() => stop('SIGTERM'), graceMs));
    this.#timers.push(setTimeout(() => stop('SIGKILL'), graceMs + STOP_MS));
  }

  /** The first signal is the ranks' to handle; whoever sends a second one does not want to wait. */
  #interrupt(signal: NodeJS.Signals): void {
    for (const rank of this.#ranks) if (rank.running) rank.signalGroup(this.#interrupted ? 'SIGKILL' : signal);
    this.#interrupted = true;
  }

  #notice(text: string): void {
    if (this.#options.onNotice === undefined) process.stderr.write(`weftline: ${text}\n`);
    else this.#options.onNotice(text);
  }

  #closePipes(): void {
    for (const { child } of this.#ranks) {
      child.stdout?.destroy();
      child.stderr?.destroy();
    }
  }
}

interface RankStart {
  readonly address: { readonly host: string; readonly port: number };
  readonly server: Server | undefined;
  readonly print: (rank: number, stream: OutputLine['stream'], line: Buffer) => Promise<void> | void;
}

function listen(): Promise<Server> {
  return new Promise((resolve, reject) => {
    const server = createServer((socket) => socket.destroy());
    server.once('error', (cause) =>
      reject(new WeftlineError('WL_LAUNCH', `Cannot listen on 127.0.0.1 for the ranks: ${cause.message}`, { cause })),
    );
    server.listen({ host: '127.0.0.1', port: 0, backlog: 4096 }, () => resolve(server));
  });
}

function portOf(server: Server | undefined): number {
  const address = server?.address();
  return typeof address === 'object' && address !== null ? address.port : 0;
}

/** Node passes a descriptor on, but tells a server's only on its handle. */
function descriptorOf(server: Server): number {
  return (Reflect.get(server, '_handle') as { readonly fd: number }).fd;
}
