// The driver of ranks: starts a job, then kills one of its ranks or stops it for a while.
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { launch, type OutputLine } from 'weftline/world';
import type { Random } from '../fuzz/random.ts';
import { DEADLINE_LIMIT_MS, DEADLINE_MS } from './chaos-settings.ts';
import type { RankOutcome } from './ep-rank.ts';
import type { ChaosEvent } from './pair-rounds.ts';

const script = fileURLToPath(new URL('./ep-rank.js', import.meta.url));
const RANKS = 3;
/** Rounds of a job whose rank is stopped and continued. */
const ROUNDS = 150;
const MAX_PATIENCE_MS = 60;
const MAX_STOP_MS = 400;
const JOB_MS = 240_000;
/** Threads of the pool start when they are needed; windows are what must not stay. */
const SLACK = { descriptors: 2, mappings: 0, threads: 4 } as const;

export class EpJobs {
  readonly faults: string[] = [];
  rounds = 0;
  #number = 0;

  async play(event: ChaosEvent, random: Random): Promise<void> {
    const where = `ep, ${event}, job ${++this.#number}`;
    const fault = (what: string): void => void this.faults.push(`${where}: ${what}`);
    const victim = random.below(RANKS);
    const lines: OutputLine[] = [];
    const pids = new Map<number, number>();
    let running = 0;
    let actedAt = 0;
    let acting: Promise<void> | undefined;
    const act = async (): Promise<void> => {
      await sleep(random.next() * MAX_PATIENCE_MS);
      const pid = pids.get(victim) as number;
      actedAt = performance.now();
      process.kill(pid, event === 'kill' ? 'SIGKILL' : 'SIGSTOP');
      if (event === 'kill') return;
      await sleep(event === 'stop' ? random.next() * MAX_STOP_MS : DEADLINE_MS * 2.5);
      process.kill(pid, 'SIGCONT');
    };
    const outcomes = new Map<number, RankOutcome & { readonly afterMs: number }>();
    const { ranks } = await launch({
      command: [process.execPath, script, String(event === 'stop' ? ROUNDS : 0)],
      ranks: RANKS,
      env: { NODE_TEST_CONTEXT: undefined },
      settings: { graceMs: 2 * DEADLINE_LIMIT_MS },
      signal: AbortSignal.timeout(JOB_MS),
      onLine: (line) => {
        lines.push(line);
        if (line.text.startsWith('pid ')) pids.set(line.rank, Number(line.text.slice(4)));
        if (line.text === 'running' && ++running === RANKS) acting = act();
        if (!line.text.startsWith('{')) return;
        const outcome = JSON.parse(line.text) as RankOutcome;
        outcomes.set(outcome.rank, { ...outcome, afterMs: performance.now() - actedAt });
      },
    });
    await acting;
    if (acting === undefined) fault(`the ranks did not begin to run: ${lines.map(({ text }) => text).join('\n')}`);
    for (const { rank } of ranks) {
      const outcome = outcomes.get(rank);
      if (outcome === undefined) {
        if (event !== 'kill' || rank !== victim) fault(`rank ${rank} ended without a word: ${textOf(lines, rank)}`);
        continue;
      }
      this.rounds += outcome.rounds;
      this.#check(outcome, { event, victim, fault });
    }
  }

  #check(
    { rank, error, wrong, afterMs, before, after, what }: RankOutcome & { readonly afterMs: number },
    {
      event,
      victim,
      fault,
    }: { readonly event: ChaosEvent; readonly victim: number; readonly fault: (what: string) => void },
  ): void {
    if (wrong !== undefined) fault(`rank ${rank}: ${wrong}`);
    if (event === 'stop') {
      if (error !== undefined) fault(`rank ${rank} failed: ${error.code} ${error.message}`);
      return;
    }
    if (rank === victim) return;
    const codes = event === 'kill' ? ['WL_PEER_LOST', 'WL_PEER_FAILED'] : ['WL_TIMEOUT', 'WL_PEER_FAILED'];
    const named = new RegExp(`\\branks? ([0-9, ]*\\b)?${victim}\\b`, 'i');
    if (error === undefined) fault(`rank ${rank} ended without an error`);
    else if (!codes.includes(error.code)) fault(`rank ${rank} was told ${error.code} ${error.message}`);
    else if (!named.test(error.message)) fault(`rank ${rank} was not told of rank ${victim}: ${error.message}`);
    if (afterMs > DEADLINE_LIMIT_MS) fault(`rank ${rank} ended ${afterMs.toFixed(0)} ms after the event`);
    for (const key of ['descriptors', 'mappings', 'threads'] as const) {
      if (after[key] - before[key] <= SLACK[key]) continue;
      fault(`rank ${rank} has ${after[key]} ${key}, there were ${before[key]}:\n${what}`);
    }
  }
}

function textOf(lines: readonly OutputLine[], rank: number): string {
  return lines
    .filter((line) => line.rank === rank)
    .map(({ text }) => text)
    .join('\n');
}
