// Jobs that do not go on explain themselves: weftline why, weftline top and SIGUSR2 name the rank that the others wait for.
import assert from 'node:assert/strict';
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { exitCodes } from '#lib/programs/cli/exit-codes.js';
import { type Conclusion, conclude } from '#lib/world/watching/conclusion.js';
import { chooseJobs, findJobs } from '#lib/world/watching/find-jobs.js';
import { type JobAnswers, JobObserver } from '#lib/world/watching/job-observer.js';
import { JobWatcher, type JobView } from '#lib/world/watching/job-view.js';
import { freePort } from '../support/free-port.ts';
import { until } from '../support/until.ts';
import { skipWithout } from './support/requirements.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const script = fileURLToPath(new URL('./ranks/why-rank.js', import.meta.url));
const env = { ...process.env, WEFTLINE_TIMEOUT_MS: '600000', NODE_TEST_CONTEXT: undefined };
/** For ranks to answer on a busy machine: a look ends once all have that are not stopped. */
const PATIENT = ['--wait', '20000'];
/** Times of looks one after the other at a rank that computes, which takes up all of the time. */
const LESS_AND_LESS_HASTY = ['1000', '5000', '20000', '60000'];

type Explained = JobView & { readonly conclusion: Conclusion };

interface Stuck {
  readonly ranks?: number;
  /** The rank that does not come. */
  readonly missing?: number;
  /** How many ranks say that they are about to wait. */
  readonly there?: number;
}

function areComplete({ ranks, processes }: JobAnswers): boolean {
  return ranks.size === 4 && processes.size === 4;
}

/** A job that is left alone until the test ends it. */
class StuckJob implements AsyncDisposable {
  readonly launcher: ChildProcess;
  readonly pids = new Map<number, number>();
  output = '';
  #there = 0;

  static async start(scenario: string, { ranks = 3, missing = 1, there = ranks }: Stuck = {}): Promise<StuckJob> {
    const job = new StuckJob(scenario, ranks, missing);
    await until(() => job.pids.size === ranks && job.#there === there, `ranks of ${scenario}`);
    return job;
  }

  private constructor(scenario: string, ranks: number, missing: number) {
    const args = [main, 'run', '-n', String(ranks), script, scenario, String(missing)];
    this.launcher = spawn(process.execPath, args, { env, stdio: ['ignore', 'pipe', 'pipe'] });
    for (const stream of [this.launcher.stdout!, this.launcher.stderr!]) {
      stream.on('data', (chunk) => {
        this.output += String(chunk);
        this.#there = this.output.match(/^\[\d+\] there$/gm)?.length ?? 0;
        for (const [json] of this.output.matchAll(/\{"rank".*\}/g)) {
          const { rank, pid } = JSON.parse(json) as { rank: number; pid: number };
          this.pids.set(rank, pid);
        }
      });
    }
  }

  get name(): string {
    return String(this.launcher.pid);
  }

  /** As `why --json` says it, once the ranks wait as expected. */
  async explained(roots: readonly number[], waiters: number, waits = ['20000']): Promise<Explained> {
    const isAsExpected = (view: JobView, conclusion: Conclusion): boolean =>
      conclusion.roots.join() === roots.join() &&
      view.ranks.filter((rank) => rank.waits.length > 0).length >= waiters &&
      view.ranks.every(({ state }) => state !== 'unknown');
    await until(
      async () => {
        const [job] = chooseJobs(findJobs(), this.name);
        const watcher = new JobWatcher(job!);
        const view = await watcher.look(2000);
        watcher.close();
        return isAsExpected(view, conclude(view, 0));
      },
      `that the job stands at rank ${roots.join()}`,
      600_000,
    );
    for (const wait of waits) {
      const { status, stdout, stderr } = weftline('why', this.name, '--json', '--overdue', '0', '--wait', wait);
      assert.equal(status, exitCodes.failure.code, stderr);
      const explained = (JSON.parse(stdout) as { jobs: Explained[] }).jobs[0]!;
      if (isAsExpected(explained, explained.conclusion)) return explained;
    }
    throw new Error(`Rank ${roots.join()} is not named, or others are not known`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = once(this.launcher, 'close');
    this.launcher.kill('SIGKILL');
    await closed;
  }
}

function weftline(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  return spawnSync(process.execPath, [main, ...args], { encoding: 'utf8', timeout: 600_000, env });
}

describe('jobs that do not go on', { concurrency: 2 }, () => {
  test('a stopped rank: the others wait for it in a dispatch', async () => {
    await using job = await StuckJob.start('stopped', { missing: 2 });
    const { ranks, conclusion } = await job.explained([2], 2);
    assert.equal(ranks[2]!.state, 'silent');
    assert.equal(ranks[2]!.process?.state, 'T');
    assert.equal(ranks[2]!.pid, job.pids.get(2));
    const [wait] = ranks[0]!.waits;
    assert.deepEqual(
      [wait?.operation, wait?.ranks, wait?.seen, wait?.expected],
      ['dispatch (opening barrier)', [2], 2, 3],
    );
    assert.ok(wait!.ageMs > 0 && wait!.leftMs! > 0);
    assert.match(
      conclusion.sentences[0]!,
      /^Rank 2 is stopped \(SIGSTOP, or a debugger\) \(process \d+ on .+\): ranks 0, 1 have waited for it for \d+\.\d s, in call 3 of EpBuffer: dispatch \(opening barrier\)$/,
    );
    const text = weftline('why', job.name, ...PATIENT);
    assert.equal(text.status, exitCodes.failure.code);
    assert.match(
      text.stdout,
      /^0 +\S+ +\d+ +waits +EpBuffer dispatch 3 +dispatch \(opening barrier\) +rank 2 +\d+\.\d s +2 of 3 +\d+\.\d s$/m,
    );
    assert.match(text.stdout, /^2 +\S+ +\d+ +silent \(T\)/m);
  });

  test('a rank whose program is elsewhere has not entered the call of the others', async () => {
    await using job = await StuckJob.start('elsewhere', { there: 2 });
    const { ranks, conclusion } = await job.explained([1], 2);
    assert.equal(ranks[1]!.state, 'answers');
    assert.deepEqual(
      ranks[1]!.objects.map(({ object, calls, last, isRunning }) => [object, calls, last, isRunning]),
      [['EpBuffer', 2, 'dispatch', false]],
    );
    assert.match(
      conclusion.sentences[0]!,
      /^Rank 1 has not entered call 3 of EpBuffer \(dispatch\): its last, 2 \(dispatch\), has ended, and its program is elsewhere/,
    );
  });

  test('a rank that computes without end does not answer', async () => {
    await using job = await StuckJob.start('computes');
    const { ranks, conclusion } = await job.explained([1], 2, LESS_AND_LESS_HASTY);
    assert.equal(ranks[1]!.state, 'silent');
    assert.match(conclusion.sentences[0]!, /^Rank 1 does not answer: its thread/);
  });

  test('a barrier of the world: the store knows who is missing', async () => {
    await using job = await StuckJob.start('barrier', { there: 2 });
    const { ranks, conclusion } = await job.explained([1], 2);
    assert.deepEqual(
      ranks[0]!.waits.map(({ operation, ranks: missing }) => [operation, missing]),
      [['barrier "step"', [1]]],
    );
    assert.match(
      conclusion.sentences[0]!,
      /^Rank 1 is in its own code .*: ranks 0, 2 have waited for it for .* in barrier "step"/,
    );
  });

  test('ranks in different barriers wait for each other', async () => {
    await using job = await StuckJob.start('crossed', { ranks: 2 });
    const { conclusion } = await job.explained([0, 1], 2);
    assert.match(
      conclusion.sentences[0]!,
      /^Ranks wait for each other: rank [01] for rank [01] since .*barrier "(left|right)"/,
    );
  });

  test('a transfer of an agent whose peer is silent', async () => {
    await using job = await StuckJob.start('agent', { ranks: 2 });
    const { ranks, conclusion } = await job.explained([1], 1);
    const [wait] = ranks[0]!.waits;
    assert.deepEqual(wait?.peers, ['why-1']);
    assert.match(wait.operation, /^Transfer 1 \(write of agent why-0 to agent why-1 by multipath\)/);
    assert.match(
      conclusion.sentences[0]!,
      /^Rank 1 is stopped .*: rank 0 has waited for why-1, which may be it, for .*, in Transfer 1/,
    );
  });

  test('two jobs at once are told apart; SIGUSR2 prints the same; top shows the ranks', async () => {
    await using first = await StuckJob.start('elsewhere', { ranks: 2, there: 1 });
    await using second = await StuckJob.start('barrier', { ranks: 2, missing: 0, there: 1 });
    await first.explained([1], 1);
    await second.explained([0], 1);
    const all = findJobs();
    for (const job of [first, second]) {
      const [found] = chooseJobs(all, String(job.pids.get(0)));
      assert.deepEqual(found?.launchers, [job.launcher.pid]);
      assert.equal(chooseJobs(all, found.prefix)[0], found);
    }
    const isTold = (): boolean => /^Rank 1 has not entered call 3 of EpBuffer/m.test(first.output);
    // On a busy machine a rank may take longer to answer than the launcher waits: then it is asked again.
    const textsOf = (): number => first.output.split(': 2 ranks, launcher ').length;
    for (let asked = 0; asked < 20 && !isTold(); asked++) {
      const before = textsOf();
      first.launcher.kill('SIGUSR2');
      await until(() => textsOf() > before, 'the text of the launcher');
    }
    assert.ok(isTold(), first.output);
    process.kill(first.pids.get(0)!, 'SIGUSR2');
    const isWhole = (): boolean => /^\[0\] EpBuffer: 3 calls, the last is dispatch$/m.test(first.output);
    await until(isWhole, 'the text of the rank, to its last line');
    assert.match(first.output, /^\[0\] weftline: rank 0, process \d+: waits$/m);
    const top = weftline('top', first.name, '--once', '--interval', '100', ...PATIENT);
    assert.equal(top.status, 0, top.stderr);
    assert.match(top.stdout, /^0 +\S+ +\d+ +waits +EpBuffer dispatch 3 +rank 1 /m);
    const json = weftline('top', first.name, '--once', '--json', '--interval', '100', ...PATIENT);
    const { jobs } = JSON.parse(json.stdout) as { jobs: { ranks: { rates: { calls: number } }[] }[] };
    assert.deepEqual(
      jobs.map(({ ranks }) => ranks.map(({ rates }) => rates.calls)),
      [[0, 0]],
    );
  });

  test('a stopped launcher is named, and so is one that has ended', async () => {
    await using job = await StuckJob.start('barrier', { ranks: 2, there: 1 });
    process.kill(job.launcher.pid!, 'SIGSTOP');
    try {
      const { status, stdout } = weftline('why', job.name, '--wait', '300');
      assert.equal(status, exitCodes.failure.code);
      assert.match(stdout, /^The launcher, process \d+, is stopped \(SIGSTOP\), and with it the store/m);
    } finally {
      process.kill(job.launcher.pid!, 'SIGCONT');
    }
    // A rank whose launcher is gone and did not take it along, as none of weftline's does.
    const orphan = spawn('sleep', ['600'], {
      detached: true,
      stdio: 'ignore',
      env: {
        WEFTLINE_RANK: '0',
        WEFTLINE_WORLD_SIZE: '2',
        WEFTLINE_JOB_ID: 'orphan',
        WEFTLINE_MASTER_PORT: String(await freePort()),
        WEFTLINE_LAUNCHER_PID: String(2 ** 22 + 1),
      },
    });
    try {
      const { status, stdout } = weftline('why', String(orphan.pid));
      assert.equal(status, exitCodes.failure.code);
      assert.match(stdout, /^The launcher, process 4194305, has ended; its ranks end too\. Nobody listens/m);
    } finally {
      orphan.kill('SIGKILL');
    }
  });
});

test('the launchers of several nodes tell what their systems show of their ranks', async () => {
  const port = await freePort();
  const token = 'of the test';
  const nodes = [0, 1].map((node) => {
    const place = ['--nnodes', '2', '--node-rank', String(node), '--master', `127.0.0.1:${port}`];
    const args = [main, 'run', '-n', '2', ...place, script, 'barrier', '3'];
    return spawn(process.execPath, args, { env: { ...env, WEFTLINE_TOKEN: token }, stdio: 'ignore' });
  });
  try {
    const address = { host: '127.0.0.1', port, token, scope: '' };
    let answers: JobAnswers | undefined;
    await until(
      async () => {
        const observer = await JobObserver.connect(address, 1000).catch(() => undefined);
        answers = await observer?.ask(1000, areComplete).catch(() => undefined);
        observer?.close();
        return answers !== undefined && areComplete(answers);
      },
      'answers of all ranks and launchers',
      600_000,
    );
    for (const [rank, { pid, state }] of answers!.processes) {
      assert.equal(pid, answers!.members.get(rank)?.pid);
      assert.match(state, /^[RSD]$/);
    }
    await assert.rejects(JobObserver.connect({ ...address, token: 'another' }, 30_000), { code: 'WL_UNAUTHORIZED' });
    const [job] = chooseJobs(findJobs(), String(nodes[1]!.pid));
    assert.deepEqual(new Set(job?.launchers), new Set(nodes.map(({ pid }) => pid)));
    assert.deepEqual([...(job?.pids.keys() ?? [])], [0, 1, 2, 3]);
  } finally {
    const closed = nodes.map((node) => once(node, 'close'));
    for (const node of nodes) node.kill('SIGKILL');
    await Promise.all(closed);
  }
});

test('a job that is not there is a wrong command line, which says what there is', () => {
  for (const command of ['why', 'top']) {
    const { status, stderr, stdout } = weftline(command, 'zzz');
    assert.deepEqual([status, stdout], [exitCodes.usage.code, '']);
    assert.match(stderr, /No job of user \S+ on this host is "zzz"/);
  }
});

/** Nobody, and no user of another run of these tests. */
const OTHER_USER = 10_000 + (process.pid % 50_000);

function whyNoOtherUser(): string | undefined {
  if (process.geteuid?.() !== 0) return 'needs root, to run a process as another user';
  const { status } = spawnSync(process.execPath, ['--check', main], { uid: OTHER_USER, gid: OTHER_USER, cwd: '/' });
  return status === 0 ? undefined : `user ${OTHER_USER} cannot read this folder`;
}

test("another user's job is refused, and not listed", { skip: skipWithout('other-user', whyNoOtherUser()) }, () => {
  const rank = spawn('sleep', ['600'], {
    uid: OTHER_USER,
    gid: OTHER_USER,
    cwd: '/',
    detached: true,
    stdio: 'ignore',
    env: { WEFTLINE_RANK: '0', WEFTLINE_WORLD_SIZE: '1', WEFTLINE_JOB_ID: 'other' },
  });
  try {
    const { status, stderr } = weftline('why', String(rank.pid));
    assert.equal(status, exitCodes.usage.code);
    assert.match(stderr, new RegExp(`belongs to the user with id ${OTHER_USER}, and this is user 0`));
    assert.ok(!findJobs().some(({ prefix }) => prefix === 'other'));
  } finally {
    rank.kill('SIGKILL');
  }
  // That user has no other job.
  const options = { uid: OTHER_USER, gid: OTHER_USER, cwd: '/', encoding: 'utf8' } as const;
  const none = spawnSync(process.execPath, [main, 'why'], options);
  assert.deepEqual([none.status, none.stdout], [0, 'No job of this user has ranks on this host.\n']);
});
