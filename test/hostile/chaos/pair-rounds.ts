// The driver of pairs: starts a victim, lets it run with the survivor, then kills it or stops it for a while.
import { type ChildProcess, fork } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { ProcessUsage } from '../../support/process-usage.ts';
import type { Random } from '../fuzz/random.ts';
import { DEADLINE_LIMIT_MS, DEADLINE_MS, START_MS } from './chaos-settings.ts';
import type { DriverWords, PairKind, ProcessWords } from './driver-link.ts';
import type { EncodedError } from '#lib/core/errors.js';

export type ChaosEvent = 'kill' | 'stop' | 'long stop';

const script = fileURLToPath(new URL('./pair-process.js', import.meta.url));
/** How long after it began to run something happens to the victim, at most. */
const MAX_PATIENCE_MS = 60;
const MAX_STOP_MS = 400;
/** The survivor's first rounds set up what it keeps. */
const WARM_ROUNDS = 2;
const SLACK = { descriptors: 2, mappings: 1, threads: 1 } as const;

/** One process, and what it last said of each thing. */
class Player {
  readonly child: ChildProcess;
  isGone = false;
  readonly #said: ProcessWords[] = [];
  #wake: (() => void) | undefined;

  constructor() {
    const env = { ...process.env, NODE_TEST_CONTEXT: undefined };
    this.child = fork(script, { env, execArgv: [], serialization: 'advanced' });
    this.child.once('exit', () => {
      this.isGone = true;
      this.#wake?.();
    });
  }

  begin(round: Omit<Extract<DriverWords, { do: 'round' }>, 'do'>, peer: Player): void {
    this.#said.length = 0;
    this.child.removeAllListeners('message');
    this.child.on('message', (words: ProcessWords) => {
      if (words.tell === 'peer') peer.send({ do: 'peer', words: words.words });
      else this.#said.push(words);
      this.#wake?.();
    });
    this.send({ do: 'round', ...round });
  }

  send(words: DriverWords): void {
    if (!this.isGone && this.child.connected) this.child.send(words, () => {});
  }

  /** Undefined when the process ended first, or did not say so in time. */
  async heard<T extends ProcessWords['tell']>(
    tell: T,
    milliseconds: number,
  ): Promise<Extract<ProcessWords, { readonly tell: T }> | undefined> {
    const end = performance.now() + milliseconds;
    for (;;) {
      const found = this.#said.find((words) => words.tell === tell);
      if (found !== undefined) return found as Extract<ProcessWords, { readonly tell: T }>;
      const left = end - performance.now();
      if (this.isGone || left <= 0) return undefined;
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, left);
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  async end(): Promise<void> {
    if (this.isGone) return;
    this.child.kill('SIGKILL');
    while (!this.isGone) await sleep(1);
  }
}

interface Survivor {
  readonly player: Player;
  rounds: number;
  baseline?: ProcessUsage;
}

export class PairRounds {
  readonly faults: string[] = [];
  operations = 0;
  readonly #survivors = new Map<PairKind, Survivor>();
  readonly #victims = new Map<PairKind, Player>();
  #number = 0;

  /** One event. What it finds goes to `faults`. */
  async play(kind: PairKind, event: ChaosEvent, random: Random): Promise<void> {
    const survivor = this.#survivors.get(kind) ?? { player: new Player(), rounds: 0 };
    this.#survivors.set(kind, survivor);
    // One that was only stopped in its last round plays on.
    const victim = this.#victims.get(kind) ?? new Player();
    this.#victims.set(kind, victim);
    const name = `victim-${++this.#number}`;
    const where = `${kind}, ${event}, round ${this.#number}`;
    const fault = (what: string): void => void this.faults.push(`${where}: ${what}`);
    const seed = random.below(2 ** 31);
    survivor.player.begin({ kind, seed, name: 'survivor', peer: name }, victim);
    victim.begin({ kind, seed: seed ^ 1, name, peer: 'survivor' }, survivor.player);
    const running = await Promise.all([survivor.player.heard('running', START_MS), victim.heard('running', START_MS)]);
    if (running.includes(undefined)) {
      const ends = [await survivor.player.heard('ended', 1), await victim.heard('ended', 1)];
      fault(`the pair did not begin to run: ${ends.map((end) => describe(end?.error)).join('; ')}`);
    } else {
      await sleep(random.next() * MAX_PATIENCE_MS);
      if (event === 'kill') await this.#kill(survivor, victim, { name, fault });
      else await this.#stop(survivor, victim, { isLong: event === 'long stop', random, fault });
    }
    const left = await survivor.player.heard('left', DEADLINE_LIMIT_MS);
    if (left === undefined) {
      fault(survivor.player.isGone ? `the survivor ended with ${exitOf(survivor.player.child)}` : 'closing hangs');
      await survivor.player.end();
      this.#survivors.delete(kind);
    } else {
      if (left.wrong !== undefined) fault(left.wrong);
      this.#checkUsage(survivor, left, fault);
    }
    const isThrough = event !== 'kill' && (await victim.heard('left', 1)) !== undefined;
    if (isThrough) return;
    await victim.end();
    this.#victims.delete(kind);
  }

  async close(): Promise<void> {
    for (const { player } of this.#survivors.values()) await player.end();
    for (const victim of this.#victims.values()) await victim.end();
  }

  async #kill(
    { player }: Survivor,
    victim: Player,
    { name, fault }: { readonly name: string; readonly fault: (what: string) => void },
  ): Promise<void> {
    await victim.end();
    const end = await player.heard('ended', DEADLINE_LIMIT_MS);
    player.send({ do: 'gone' });
    if (end === undefined) {
      if (!player.isGone) fault(`still going ${DEADLINE_LIMIT_MS} ms after its peer was killed`);
      return;
    }
    this.operations += end.operations;
    const { error } = end;
    if (error?.code !== 'WL_PEER_LOST') fault(`the loss of its peer was told as ${describe(error)}`);
    else if (!error.message.includes(name)) fault(`the error does not name ${name}: ${error.message}`);
  }

  async #stop(
    { player }: Survivor,
    victim: Player,
    {
      isLong,
      random,
      fault,
    }: { readonly isLong: boolean; readonly random: Random; readonly fault: (what: string) => void },
  ): Promise<void> {
    victim.child.kill('SIGSTOP');
    const stopMs = isLong ? DEADLINE_MS * 1.5 : random.next() * MAX_STOP_MS;
    await sleep(stopMs);
    victim.child.kill('SIGCONT');
    await sleep(random.next() * MAX_PATIENCE_MS);
    for (const one of [player, victim]) one.send({ do: 'finish' });
    // The side that fails says why; the other one then waits for nobody.
    const watch = async (one: Player, other: Player, who: string): Promise<void> => {
      const end = await one.heard('ended', DEADLINE_LIMIT_MS);
      this.operations += end?.operations ?? 0;
      if (end === undefined) fault(`the ${who} is still going, or ended with ${exitOf(one.child)}`);
      if (end === undefined || end.error !== undefined) other.send({ do: 'gone' });
      if (end?.error === undefined) return;
      // On one host only notifications wait for a peer that is stopped: they find no room until the deadline.
      const isExpected = isLong && ['WL_TIMEOUT', 'WL_PEER_LOST', 'WL_CLOSED', 'WL_BUSY'].includes(end.error.code);
      if (!isExpected) fault(`the ${who} failed after a stop of ${stopMs.toFixed(0)} ms: ${describe(end.error)}`);
    };
    await Promise.all([watch(player, victim, 'survivor'), watch(victim, player, 'victim')]);
    const left = await victim.heard('left', DEADLINE_LIMIT_MS);
    if (left === undefined) fault('the victim does not come to its end after it was continued');
    else if (left.wrong !== undefined) fault(`victim: ${left.wrong}`);
  }

  #checkUsage(
    survivor: Survivor,
    { usage, what }: Extract<ProcessWords, { readonly tell: 'left' }>,
    fault: (what: string) => void,
  ): void {
    survivor.rounds++;
    if (survivor.rounds === WARM_ROUNDS) survivor.baseline = usage;
    const { baseline } = survivor;
    if (baseline === undefined) return;
    for (const key of ['descriptors', 'mappings', 'threads'] as const) {
      if (usage[key] - baseline[key] <= SLACK[key]) continue;
      fault(`${usage[key]} ${key} are left in the survivor, there were ${baseline[key]}:\n${what}`);
      // What was told once is not told after each round.
      survivor.baseline = { ...baseline, [key]: usage[key] };
    }
  }
}

function exitOf({ exitCode, signalCode }: ChildProcess): string {
  return signalCode ?? `code ${exitCode}`;
}

function describe(error: EncodedError | undefined): string {
  return error === undefined ? 'no error' : `${error.code} ${error.message}`;
}
