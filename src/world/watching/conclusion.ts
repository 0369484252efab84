// Why a job does not go on: follows who waits for whom to the ranks that everybody waits for and that wait for nobody.
import type { ObjectState } from '../../core/waits.ts';
import { rankList } from '../membership.ts';
import type { JobView, RankView } from './job-view.ts';
import { isStopped, type ProcessFacts } from './process-facts.ts';

export interface Conclusion {
  /** One sentence each; the first says most. */
  readonly sentences: readonly string[];
  /** Ranks at which the job stands: they are silent, or others wait for them and they wait for nobody, or for each other. */
  readonly roots: readonly number[];
  /** A rank or the store is silent, or others have waited for one for longer than `overdueMs`. */
  readonly isTrouble: boolean;
}

interface Edge {
  readonly from: number;
  readonly to: number;
  readonly ageMs: number;
  readonly operation: string;
  /** Names that no rank answered to: those of the silent ranks, or of strangers. */
  readonly guessed: string | undefined;
}

/** Share of a processor: a thread that is ready to run and gets less gets none. */
const MIN_SHARE = 0.01;

/** @param overdueMs How long others may wait for a rank before that counts as trouble. */
export function conclude(view: JobView, overdueMs: number): Conclusion {
  const stopped = storeTrouble(view);
  if (stopped !== undefined) return { sentences: stopped, roots: [], isTrouble: true };
  if (view.storeError !== undefined)
    return { sentences: [`Its ranks were not asked: ${view.storeError}`], roots: [], isTrouble: false };
  const edges = edgesOf(view.ranks);
  const awaited = new Set(edges.map(({ to }) => to));
  const waiting = new Set(edges.map(({ from }) => from));
  const silent = view.ranks.filter(({ state }) => state === 'silent').map(({ rank }) => rank);
  const roots = [...new Set([...silent, ...[...awaited].filter((rank) => !waiting.has(rank))])].toSorted(ascending);
  const sentences = roots.map((rank) => ofRoot(view.ranks[rank]!, edges, view.ranks));
  const overdue = (ranks: readonly number[]): boolean =>
    edges.some(({ to, ageMs }) => ranks.includes(to) && ageMs > overdueMs);
  const isOver = view.ranks.some(({ waits }) => waits.some(({ leftMs = 0 }) => leftMs < 0));
  if (roots.length > 0) return { sentences, roots, isTrouble: silent.length > 0 || overdue(roots) || isOver };
  const circle = circleOf(edges);
  if (circle.length > 0) return { sentences: [ofCircle(circle, edges)], roots: circle, isTrouble: overdue(circle) };
  return { sentences: [ofRest(view)], roots: [], isTrouble: isOver };
}

/** A rank at which others stand, and why, as a sentence. */
export interface Cause {
  readonly rank: number;
  readonly sentence: string;
}

/**
 * The ranks at the end of the chains of those that a rank waits for: they are silent or gone, wait for nobody, or have not come
 * to its call. If the chains only lead back, a silent rank of the call is the cause, which may have to forward what others sent.
 * None if there is none.
 * @param view Of the job.
 * @param from The rank that waits.
 * @param named For whom.
 */
export function causesBehind(view: JobView, from: number, named: readonly number[]): Cause[] {
  const { ranks } = view;
  const edges = edgesOf(ranks);
  const calls = ranks[from]?.objects.filter(({ isRunning }) => isRunning) ?? [];
  const isBehind = (other: RankView): boolean => calls.some((object) => !hasCome(other, object));
  const reached = new Set(named);
  const causes: number[] = [];
  for (const rank of reached) {
    const other = ranks[rank];
    if (other === undefined) continue;
    const next = edges.filter((edge) => edge.from === rank && edge.to !== from).map(({ to }) => to);
    const waits = edges.some((edge) => edge.from === rank);
    if (other.state !== 'answers' || !waits || isBehind(other)) causes.push(rank);
    else for (const to of next) reached.add(to);
  }
  if (causes.length === 0) {
    const ofCalls = new Set(calls.flatMap((object) => object.ranks));
    return ranks
      .filter(({ rank, state }) => state === 'silent' && ofCalls.has(rank))
      .map((silent) => ({
        rank: silent.rank,
        sentence: `Rank ${silent.rank} ${stateText(silent, undefined, ranks)}: it may have to forward what others wait for`,
      }));
  }
  return causes.toSorted(ascending).map((rank) => ({ rank, sentence: ofRoot(ranks[rank]!, edges, ranks) }));
}

/** The store, without which ranks cannot meet, is served by a launcher or by rank 0. */
function storeTrouble({ storeError, isStoreBusy, launchers, size }: JobView): string[] | undefined {
  if (storeError === undefined || isStoreBusy || size === 1) return undefined;
  for (const { pid, process } of launchers) {
    if (process === undefined) return [`The launcher, process ${pid}, has ended; its ranks end too. ${storeError}`];
    if (isStopped(process)) {
      return [
        `The launcher, process ${pid}, is stopped (SIGSTOP), and with it the store of the job: continue it with kill -CONT ${pid}`,
      ];
    }
  }
  return [`The store of the job could not be asked: ${storeError}`];
}

function edgesOf(ranks: readonly RankView[]): Edge[] {
  const byName = new Map(ranks.flatMap(({ rank, names }) => names.map((name) => [name, rank] as const)));
  const silent = ranks.filter(({ state }) => state === 'silent').map(({ rank }) => rank);
  return ranks.flatMap((view) =>
    view.waits.flatMap(({ ranks: named = [], peers = [], ageMs, operation }) => {
      const known = [...named, ...peers.flatMap((peer) => byName.get(peer) ?? [])];
      const isGuess = known.length === 0 && peers.length > 0;
      const guessed = isGuess ? peers.join(', ') : undefined;
      const suspects = isGuess ? silent : behindOf(view, ranks);
      const missing = known.length > 0 ? known : suspects;
      return [...new Set(missing)]
        .filter((to) => to !== view.rank && ranks[to] !== undefined)
        .map((to): Edge => ({ from: view.rank, to, ageMs, operation, guessed }));
    }),
  );
}

/** A kernel does not say whom it waits for: then those count that have not come to the call that this rank is in. */
function behindOf(view: RankView, ranks: readonly RankView[]): number[] {
  return view.objects
    .filter(({ isRunning }) => isRunning)
    .flatMap((object) =>
      object.ranks.filter((rank) => {
        const other = ranks[rank];
        if (other === undefined || other.state === 'silent') return other !== undefined;
        return other.state === 'answers' && !hasCome(other, object);
      }),
    );
}

/** Whether a rank that should take part in the call of that object has begun it. */
function hasCome(view: RankView, object: ObjectState): boolean {
  return !object.ranks.includes(view.rank) || (sameObject(view, object)?.calls ?? 0) >= object.calls;
}

function sameObject({ objects }: RankView, { object, ranks }: ObjectState): ObjectState | undefined {
  return objects.find((other) => other.object === object && other.ranks.join() === ranks.join());
}

function ofRoot(root: RankView, edges: readonly Edge[], ranks: readonly RankView[]): string {
  const waiting = edges.filter(({ to }) => to === root.rank);
  const [oldest] = waiting.toSorted((left, right) => right.ageMs - left.ageMs);
  const state = stateText(root, oldest, ranks);
  if (oldest === undefined) return `Rank ${root.rank} ${state}; no rank waits for it yet`;
  const waiters = [...new Set(waiting.map(({ from }) => from))].toSorted(ascending);
  const verb = waiters.length === 1 ? 'has waited' : 'have waited';
  const { operation, ageMs, from, guessed } = oldest;
  const whom = guessed === undefined ? 'it' : `${guessed}, which may be it,`;
  const object = ranks[from]?.objects.find(({ isRunning }) => isRunning);
  const call = object === undefined ? '' : `call ${object.calls} of ${object.object}: `;
  const which = waiting.every((edge) => edge.operation === operation) ? '' : `, on rank ${from}`;
  return `Rank ${root.rank} ${state}: ${rankList(waiters)} ${verb} for ${whom} for ${seconds(ageMs)}, in ${call}${operation}${which}`;
}

function stateText(root: RankView, oldest: Edge | undefined, ranks: readonly RankView[]): string {
  const where = root.pid === undefined ? '' : ` (process ${root.pid} on ${root.host})`;
  if (root.state === 'silent') return `${silence(root.process, root.cpuShare)}${where}`;
  if (root.state === 'absent')
    return root.pid === undefined
      ? 'has not joined, and is no process of this host'
      : `runs but has not joined${where}`;
  if (root.state === 'left') return `has left the job${where}`;
  const object = oldest === undefined ? undefined : ranks[oldest.from]?.objects.find(({ isRunning }) => isRunning);
  if (object === undefined || !object.ranks.includes(root.rank)) return `is in its own code${where}`;
  const own = sameObject(root, object);
  const call = `call ${object.calls} of ${object.object} (${object.last})`;
  if (own === undefined)
    return `has no ${object.object}, or has closed it, so does not enter ${call}; its program is elsewhere${where}`;
  if (own.calls >= object.calls)
    return `is in ${own.isRunning ? `call ${own.calls} of ${own.object} (${own.last}) and computes` : 'its program'}${where}`;
  const last =
    own.last === undefined
      ? 'it has made none'
      : `its last, ${own.calls} (${own.last}), ${own.isRunning ? 'still runs' : 'has ended'}`;
  return `has not entered ${call}: ${last}, and its program is elsewhere${where}`;
}

function silence(process: ProcessFacts | undefined, cpuShare: number | undefined): string {
  if (process === undefined) return 'does not answer, and its host shows nothing of it';
  if (isStopped(process)) return 'is stopped (SIGSTOP, or a debugger)';
  if (process.state === 'Z') return 'has ended';
  const where = process.kernelWait === '' ? '' : ` in ${process.kernelWait}`;
  if (process.state === 'D') return `hangs in a system call${where}`;
  // Other threads of a busy host may leave little of a processor to one that computes. Of ranks of other hosts no share is known.
  const share = cpuShare === undefined ? '' : ` (${Math.round(cpuShare * 100)} % of a processor)`;
  const computes = process.state === 'R' || (cpuShare ?? 0) > 0.5;
  if (computes && (cpuShare ?? 1) >= MIN_SHARE) return `does not answer: its thread computes${share}`;
  if (computes) return `does not answer: its thread is ready to run, but gets no processor${share}`;
  return `does not answer: its thread is blocked${where}${share}`;
}

/** Ranks that wait for each other, in the order of waiting; empty without. */
function circleOf(edges: readonly Edge[]): number[] {
  const next = new Map(edges.map(({ from, to }) => [from, to]));
  for (const start of next.keys()) {
    const path: number[] = [];
    for (let at: number | undefined = start; at !== undefined; at = next.get(at)) {
      if (path.includes(at)) return path.slice(path.indexOf(at));
      path.push(at);
    }
  }
  return [];
}

function ofCircle(circle: readonly number[], edges: readonly Edge[]): string {
  const parts = circle.map((rank, at) => {
    const to = circle[(at + 1) % circle.length]!;
    const edge = edges.find((candidate) => candidate.from === rank && candidate.to === to);
    return `rank ${rank} for rank ${to} since ${seconds(edge?.ageMs ?? 0)}, in ${edge?.operation}`;
  });
  return `Ranks wait for each other: ${parts.join('; ')}. All ranks must make the same calls in the same order`;
}

function ofRest({ ranks }: JobView): string {
  const there = ranks.filter(({ state }) => state === 'answers').length;
  const outside = ranks.flatMap(({ rank, waits }) =>
    waits
      .filter(({ peers = [] }) => peers.length > 0)
      .map(({ peers, ageMs, operation }) => ({ rank, peers, ageMs, operation })),
  );
  const [oldest] = outside.toSorted((left, right) => right.ageMs - left.ageMs);
  if (oldest === undefined) return `${there} of ${ranks.length} ranks answer, and none waits for another`;
  const { rank, peers = [], ageMs, operation } = oldest;
  return `No rank waits for another; rank ${rank} waits for ${peers.join(', ')}, of no rank of this job, since ${seconds(ageMs)}, in ${operation}`;
}

export function seconds(milliseconds: number): string {
  return `${(milliseconds / 1000).toFixed(1)} s`;
}

function ascending(left: number, right: number): number {
  return left - right;
}
