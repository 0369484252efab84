// The TCP server of the rendezvous store: lets ranks in, tells them who left.
import { WeftlineError } from '../core/errors.ts';
import type { ControlChannel } from '../meeting/control-channel.ts';
import type { Credential, Credentials } from '../meeting/credentials.ts';
import { receiveHello } from '../meeting/hello.ts';
import { type ListenTarget, MeetingListener } from '../meeting/listener.ts';
import type { Settings } from '../settings/settings.ts';
import { uniqueJobId } from './environment.ts';
import { StoreConnection, StoreGroup } from './store-connection.ts';
import { isObserver, type MemberKind, readRank, storeHello } from './store-request.ts';
import { askMembers, MAX_OBSERVERS, StoreObserver } from './watching/store-observer.ts';

export interface StoreServerOptions {
  readonly listen: ListenTarget;
  readonly size: number;
  /** Launchers that meet here too, among themselves; 0 by default. */
  readonly nodeCount?: number;
  /** Fixed for the job: secrets of the job follow from it. */
  readonly credential: Credential;
  readonly jobId: string;
  /** If given, ranks that have all left may join again: that is a new world, whose id begins with this. */
  readonly jobPrefix?: string;
  readonly maxValueBytes: number;
  /** Ranks that are gone may join again under their old numbers, while the others stay. */
  readonly elastic?: boolean;
  readonly settings: Pick<Settings, 'maxStrangers' | 'greetingMs' | 'timeoutMs'>;
  /** Hears of ranks that live and were left out of a group for not having come. */
  readonly onLeftOut?: (ranks: readonly number[]) => void;
}

export class StoreServer {
  readonly #options: StoreServerOptions;
  readonly #credentials: Credentials;
  readonly #groups: Record<MemberKind, StoreGroup>;
  readonly #connections = new Set<StoreConnection>();
  readonly #observers = new Set<StoreObserver>();
  #listener: MeetingListener | undefined;
  #whenEmpty: (() => void) | undefined;

  /** Fails as MeetingListener.open does. */
  static async listen(options: StoreServerOptions): Promise<StoreServer> {
    const store = new StoreServer(options);
    const { settings, size } = options;
    store.#listener = await MeetingListener.open({
      target: options.listen,
      credentials: store.#credentials,
      // All ranks may come at once.
      settings: { ...settings, maxStrangers: Math.max(settings.maxStrangers, 2 * size) },
      silenceMs: settings.timeoutMs,
      serve: (channel) => store.#welcome(channel),
    });
    return store;
  }

  private constructor(options: StoreServerOptions) {
    const { credential } = options;
    this.#options = options;
    this.#credentials = { kind: credential.kind, read: () => credential };
    const { jobId, nodeCount = 0, maxValueBytes } = options;
    this.#groups = { rank: this.#newWorld(jobId), node: new StoreGroup({ jobId, size: nodeCount, maxValueBytes }) };
  }

  get port(): number {
    return this.#listener?.port ?? 0;
  }

  /** Waits, at most `waitMs`, until all who joined have left, then ends every connection. */
  async stop(waitMs: number): Promise<void> {
    const reason = new WeftlineError('WL_LAUNCH', 'The rendezvous store of this job was stopped');
    // Nobody waits here if there is no prefix: a rank that joins again finds the next store of rank 0.
    if (this.#options.jobPrefix !== undefined) this.#groups.rank.stop(reason);
    if (this.#connections.size > 0 && waitMs > 0) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, waitMs);
        this.#whenEmpty = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    this.#listener?.close();
    for (const member of this.#connections) member.end();
    for (const observer of this.#observers) observer.end();
  }

  /** Once all its ranks have left, another one takes its place, if they may join again. */
  #newWorld(jobId: string): StoreGroup {
    const { size, maxValueBytes, jobPrefix, elastic, onLeftOut } = this.#options;
    const world = new StoreGroup({ jobId, size, maxValueBytes, elastic, onLeftOut });
    if (jobPrefix !== undefined) {
      void world.over.then(() => (this.#groups.rank = this.#newWorld(uniqueJobId(jobPrefix)))).catch(() => {});
    }
    return world;
  }

  /**
   * A rank that joins again waits until all others have left, here or, if this store ends with its world, by calling again
   * until rank 0 serves the next one. Fails with WL_PEER_FAILED if one of the others is lost.
   */
  async #groupFor(kind: MemberKind, rank: number, channel: ControlChannel): Promise<StoreGroup> {
    for (;;) {
      const group = this.#groups[kind];
      const departure = group.core.members.departure(rank);
      const hasLeft = this.#options.elastic === true ? departure !== undefined : departure?.how === 'closed';
      const isSameWorld = this.#options.elastic === true && !group.core.members.isDeserted;
      if (kind === 'node' || !hasLeft || isSameWorld) return group;
      if (this.#options.jobPrefix === undefined) {
        // Rank 0 serves the next store itself: who calls here under its number is another process.
        if (rank === 0) return group;
        await Promise.race([group.over, Promise.resolve()]);
        // The error has a code that callers do not take for final.
        const early = `Rank ${rank} joins again, and other ranks have not closed the world that it has left`;
        throw new WeftlineError('WL_PEER_LOST', early, { rank });
      }
      await group.over;
      if (channel.isOver) throw new WeftlineError('WL_PEER_LOST', `Rank ${rank} gave up joining again`, { rank });
    }
  }

  /** Fails with WL_BUSY when too many ask already. */
  #admitObserver(): { readonly observers: number } {
    const observers = this.#observers.size;
    if (observers < MAX_OBSERVERS) return { observers };
    throw new WeftlineError('WL_BUSY', `${observers} others ask this job already; end some of them`);
  }

  #observe(channel: ControlChannel): void {
    const observer = new StoreObserver(channel.detach(), {
      groups: () => this.#groups,
      onEnd: (ended) => this.#observers.delete(ended),
    });
    this.#observers.add(observer);
    observer.start();
  }

  /** Lets a rank in that has proven itself and agrees on the job; anything else is refused with a reason. */
  async #welcome(channel: ControlChannel): Promise<void> {
    const { size, nodeCount = 0, maxValueBytes } = this.#options;
    let rank = -1;
    let group = this.#groups.rank;
    const { body: said } = await receiveHello(channel, storeHello(this.#credentials), async (body) => {
      if (isObserver(body)) return this.#admitObserver();
      const { kind, pid, host, ...known } = readRank(body, { rank: size, node: nodeCount });
      group = await this.#groupFor(kind, known.rank, channel);
      const life = group.core.join(known.rank, { pid, host });
      ({ rank } = known);
      return { jobId: group.jobId, ...(this.#options.elastic === true && kind === 'rank' && { life }) };
    });
    if (isObserver(said)) return this.#observe(channel);
    const member = new StoreConnection(channel.detach(), {
      rank,
      core: group.core,
      maxValueBytes,
      onQuestion: (question, asker) => askMembers(this.#groups, question, asker),
      onDeparture: (gone, departure) => group.departed(gone, departure),
      onEnd: (ended) => {
        group.members.delete(ended);
        this.#connections.delete(ended);
        if (this.#connections.size === 0) this.#whenEmpty?.();
      },
    });
    group.members.add(member);
    this.#connections.add(member);
    member.start();
    group.tellView();
  }
}
