// A channel of the agent as its staging thread carries it out: operations in order on a lane. Hot path: no allocation.
import { STAGED_OPERATIONS } from './board-layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { BackendRemoteRegion } from '../backend.ts';
import {
  type ChannelJob,
  type ChannelJobParts,
  type DirectChannel,
  DirectChannelJob,
  SessionChannelJob,
} from './channel-job.ts';
import type { CopyRun } from './device-copies.ts';
import type { StagedMemory } from './memory-table.ts';
import type { SendLane } from './send-lane.ts';
import type { RemoteStagedMemory } from './session-transfer.ts';

interface ThreadChannelOptions {
  /** Of the thread. */
  readonly run: CopyRun;
  /** So many operations are delivered, counted from the first. */
  readonly onDelivered: (count: number) => void;
  readonly onFailed: (error: WeftlineError) => void;
}

type AnyRemote = RemoteStagedMemory | BackendRemoteRegion;

export class ThreadChannel {
  readonly lane: SendLane;
  /** Memory of the peer by the numbers of commands. */
  readonly remotes: AnyRemote[] = [];
  readonly #jobs: readonly ChannelJob<AnyRemote>[];
  readonly #direct: DirectChannel | undefined;
  readonly #options: ThreadChannelOptions;
  #posted = 0;
  #delivered = 0;
  #error: WeftlineError | undefined;

  constructor(lane: SendLane, options: ThreadChannelOptions) {
    this.lane = lane;
    this.#options = options;
    const { ring, session, local } = lane;
    const parts: ChannelJobParts = {
      ring,
      run: options.run,
      onEnd: (error) => this.#ended(error),
    };
    if (session === undefined) {
      const direct = { channel: lane.link.openChannel(), local, marks: new Float64Array(ring.shape.slots) };
      this.#direct = direct;
      this.#jobs = Array.from(
        { length: STAGED_OPERATIONS },
        () => new DirectChannelJob(parts, direct) as ChannelJob<AnyRemote>,
      );
    } else {
      this.#jobs = Array.from(
        { length: STAGED_OPERATIONS },
        () => new SessionChannelJob(parts, session) as ChannelJob<AnyRemote>,
      );
    }
  }

  put(
    local: StagedMemory,
    remote: AnyRemote | undefined,
    place: { readonly localOffset: number; readonly remoteOffset: number; readonly bytes: number },
  ): void {
    const job = this.#next(remote);
    if (job === undefined) return;
    job.local = local;
    job.localOffset = place.localOffset;
    job.remoteOffset = place.remoteOffset;
    job.bytes = place.bytes;
    this.#post(job);
  }

  /** `sum`: -1 if it is not known. */
  signal(remote: AnyRemote | undefined, offset: number, add: number, sum: number): void {
    const job = this.#next(remote);
    if (job === undefined) return;
    job.local = undefined;
    job.remoteOffset = offset;
    job.add = add;
    job.sum = sum;
    this.#post(job);
  }

  /** Something under way copies from that memory. */
  uses(memory: StagedMemory): boolean {
    return this.#jobs.some((job) => !job.isOver && job.local === memory);
  }

  fail(error: WeftlineError): void {
    if (this.#error !== undefined) return;
    this.#error = error;
    for (const job of this.#jobs) if (!job.isOver) this.lane.lane.end(job, error);
    this.#options.onFailed(error);
  }

  async close(): Promise<void> {
    this.#error ??= new WeftlineError('WL_CLOSED', 'The channel was closed');
    for (const job of this.#jobs) if (!job.isOver) this.lane.lane.end(job, this.#error);
    await this.#direct?.channel.close();
  }

  #next(remote: AnyRemote | undefined): ChannelJob<AnyRemote> | undefined {
    if (this.#error !== undefined) return undefined;
    const job = this.#jobs[this.#posted % STAGED_OPERATIONS] as ChannelJob<AnyRemote>;
    job.remote = remote;
    return job;
  }

  #post(job: ChannelJob<AnyRemote>): void {
    this.#posted++;
    job.begin();
    this.lane.lane.enqueue(job);
  }

  #ended(error: WeftlineError | undefined): void {
    if (error === undefined) {
      this.#delivered++;
      this.#options.onDelivered(this.#delivered);
    } else this.fail(error);
  }
}
