// Looks at jobs again and again for `weftline top`: finds those that begin, forgets those that end, keeps the look before.
import { chooseAnyJobs, findJobs } from '../../world/watching/find-jobs.ts';
import { type JobView, JobWatcher, type WatchedJob } from '../../world/watching/job-view.ts';
import { type TopRow, topRows } from './top-rows.ts';

export interface TopJob {
  readonly view: JobView;
  readonly rows: readonly TopRow[];
}

interface Watched {
  readonly watcher: JobWatcher;
  last: { readonly view: JobView; readonly at: number } | undefined;
}

export class TopWatch {
  readonly #wanted: string | undefined;
  readonly #patienceMs: number;
  readonly #watched = new Map<string, Watched>();

  /** Looks at the jobs that `wanted` names, see chooseJobs(). */
  constructor(wanted: string | undefined, patienceMs: number) {
    this.#wanted = wanted;
    this.#patienceMs = patienceMs;
  }

  /** Fails as chooseAnyJobs() does the first time; later a job that has ended is no longer there. */
  async look(): Promise<TopJob[]> {
    const isFirst = this.#watched.size === 0;
    const jobs = isFirst ? await chooseAnyJobs(this.#wanted, this.#patienceMs) : findJobs();
    const present = new Set(jobs.map(keyOf));
    for (const job of jobs) this.#add(job, isFirst);
    for (const [key, { watcher }] of this.#watched) {
      if (present.has(key)) continue;
      watcher.close();
      this.#watched.delete(key);
    }
    return Promise.all([...this.#watched.values()].map((watched) => this.#lookAt(watched)));
  }

  close(): void {
    for (const { watcher } of this.#watched.values()) watcher.close();
  }

  #add(job: WatchedJob, isFirst: boolean): void {
    const key = keyOf(job);
    const known = this.#watched.get(key);
    if (known !== undefined) known.watcher.update(job);
    if (known !== undefined || !(isFirst || this.#wanted === undefined)) return;
    this.#watched.set(key, { watcher: new JobWatcher(job), last: undefined });
  }

  async #lookAt(watched: Watched): Promise<TopJob> {
    const view = await watched.watcher.look(this.#patienceMs);
    const at = performance.now();
    const { last } = watched;
    watched.last = { view, at };
    return { view, rows: topRows(view, last?.view, last === undefined ? 1 : (at - last.at) / 1000) };
  }
}

function keyOf({ prefix, address }: WatchedJob): string {
  return `${prefix} ${address.host} ${address.port}`;
}
