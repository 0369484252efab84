// Knows from store-client.ts which ranks are gone that did not close their world, and who wants to know.
import { setMaxListeners } from 'node:events';
import { asWeftlineError } from '../core/errors.ts';
import { log } from '../core/log.ts';
import type { MembershipView } from './membership.ts';

interface Watcher {
  readonly ranks: readonly number[];
  readonly controller: AbortController;
  readonly lost: Set<number>;
}

export class PeerWatch {
  readonly #lost = new Map<number, unknown>();
  readonly #watchers: Watcher[] = [];
  #view: MembershipView | undefined;
  #end: { readonly reason: unknown } | undefined;

  /**
   * Aborted once one of these world ranks is lost, or the store of the job; the first loss is the reason.
   * @param ranks World ranks.
   * @param lost Gets those that are lost, whether they are there again later or not.
   */
  watch(ranks: readonly number[], lost: Set<number> = new Set()): AbortSignal {
    const controller = new AbortController();
    // Every collective object listens; any number of them is no leak.
    setMaxListeners(0, controller.signal);
    const known = [...this.#lost].filter(([rank]) => ranks.includes(rank));
    for (const [rank] of known) lost.add(rank);
    if (known.length > 0) controller.abort(known[0]![1]);
    else if (this.#end !== undefined) controller.abort(this.#end.reason);
    this.#watchers.push({ ranks, controller, lost });
    return controller.signal;
  }

  /** The view that was last heard, in an elastic world alone. */
  get view(): MembershipView | undefined {
    return this.#view;
  }

  /** False once it is known that the rank is gone. */
  isThere(rank: number): boolean {
    return !this.#lost.has(rank) && (this.#view?.members.includes(rank) ?? true);
  }

  /** Ranks that are there again are lost no more for those who watch from now on. */
  look(view: MembershipView): void {
    this.#view = view;
    for (const rank of view.members) this.#lost.delete(rank);
  }

  lose(rank: number, reason: unknown): void {
    if (!this.#lost.has(rank)) log('world', 'warn', `rank ${rank} is lost: ${asWeftlineError(reason).message}`);
    this.#lost.set(rank, reason);
    for (const { ranks, controller, lost } of this.#watchers) {
      if (!ranks.includes(rank)) continue;
      lost.add(rank);
      controller.abort(reason);
    }
  }

  /** The store is gone: no rank hears of the others any more. */
  loseAll(reason: unknown): void {
    if (this.#end === undefined) log('world', 'warn', `the store is lost: ${asWeftlineError(reason).message}`);
    this.#end ??= { reason };
    for (const { controller } of this.#watchers) controller.abort(reason);
  }
}
