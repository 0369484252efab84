// What this thread waits for and where its objects stand, for those who ask why a job does not go on.
//
// A wait enters itself when it is past its spin, and its text is made only when somebody asks: hot paths do not come here.

/** What is waited for. */
export interface WaitFacts {
  /** "dispatch (opening barrier)", "transfer 3 (write of agent a to agent b by multipath)". */
  readonly operation: string;
  /** World ranks that are missing; none where it is not known, or nobody is. */
  readonly ranks?: readonly number[];
  /** Agents, transports or addresses that are missing. */
  readonly peers?: readonly string[];
  /** How many arrivals end the wait, and how many there are. */
  readonly expected?: number;
  readonly seen?: number;
}

/** What can tell of its wait. A method, so that a wait on a hot path needs no closure for it. */
export interface WaitSource {
  waitFacts(): WaitFacts;
}

/** A wait of this thread, now. */
export interface PresentWait extends WaitFacts {
  /** How long it lasts already, in ms. */
  readonly ageMs: number;
  /** Time until its deadline, in ms; negative behind it; undefined if its caller gives up in another way. */
  readonly leftMs?: number;
}

/** Between beginWait() and endWait(). */
export interface WaitEntry {
  readonly source: WaitSource;
  /** Begin on the clock of performance.now(), as `endsAt`. */
  readonly since: number;
  readonly endsAt: number | undefined;
  /** World ranks that had not come when it began; only while somebody observes waits. */
  readonly missing: readonly number[] | undefined;
}

/** The state of an object that makes collective calls. */
export interface ObjectState {
  /** "EpBuffer", with its number among those of the same ranks where there are several. */
  readonly object: string;
  /** World ranks that make its calls together. */
  readonly ranks: readonly number[];
  /** How many calls have begun, of which all ranks make the same. */
  readonly calls: number;
  /** Name of the last of them; undefined before the first. */
  readonly last: string | undefined;
  readonly isRunning: boolean;
}

/** An object that can tell where it stands. */
export interface ObjectSource {
  objectState(): ObjectState;
}

const waits = new Set<WaitEntry>();
const objects = new Set<ObjectSource>();
/** Names that others may say they wait for. */
const names = new Set<string>();
let observer: WaitObserver | undefined;

/** Hears of every wait that has ended. Must not fail. */
type WaitObserver = (missing: readonly number[], milliseconds: number) => void;

/** This one hears of the waits of this thread from now on, and no other. */
export function observeWaits(listener: WaitObserver): void {
  observer = listener;
}

/** What the operation of a wait in the rendezvous store begins with. */
export const STORE_WAIT = 'store:';

/** Slow paths only. endWait() must follow, however the wait ends. */
export function beginWait(source: WaitSource, endsAt?: number): WaitEntry {
  const missing = observer === undefined ? undefined : factsOf(source).ranks;
  const entry = { source, since: performance.now(), endsAt, missing };
  waits.add(entry);
  return entry;
}

export function endWait(entry: WaitEntry): void {
  waits.delete(entry);
  if (entry.missing !== undefined) observer?.(entry.missing, performance.now() - entry.since);
}

/** Enters a wait that is a promise. `describe` is called when somebody asks. */
export function whileWaiting<T>(promise: Promise<T>, describe: () => WaitFacts, endsAt?: number): Promise<T> {
  const entry = beginWait({ waitFacts: describe }, endsAt);
  return promise.finally(() => endWait(entry));
}

/** All waits of this thread, the longest first. Never throws. */
export function presentWaits(now: number = performance.now()): PresentWait[] {
  const found: PresentWait[] = [];
  for (const { source, since, endsAt } of waits) {
    found.push({
      ...factsOf(source),
      ageMs: now - since,
      ...(endsAt === undefined ? {} : { leftMs: endsAt - now }),
    });
  }
  return found;
}

/** A report must not fail because one of the waits cannot tell any more. */
function factsOf(source: WaitSource): WaitFacts {
  try {
    return source.waitFacts();
  } catch {
    return { operation: 'a wait that is just ending' };
  }
}

/** The object tells where it stands from now on. Returns how to take it back. */
export function watchObject(source: ObjectSource): () => void {
  objects.add(source);
  return () => objects.delete(source);
}

export function objectStates(): ObjectState[] {
  return [...objects].map((source) => source.objectState());
}

/** This process answers to the name, which others may give as a peer. Returns how to take it back. */
export function answerTo(name: string): () => void {
  names.add(name);
  return () => names.delete(name);
}

export function answeredNames(): string[] {
  return [...names];
}
