// The channels to one peer on another host, and what waits to be sent on them.
import { PartTable } from '../../abi/part-table.ts';
import type { ChannelParts } from '../../agent/agent-options.ts';
import type { BackendName } from '../../agent/backends/backend-table.ts';
import type { BackendLink, BackendRegion, BackendRemoteRegion } from '../../agent/backend.ts';
import type { Registration } from '../../agent/registration.ts';
import type { WeftlineError } from '../../core/errors.ts';
import { OutQueue } from './out-queue.ts';

export interface NetworkLinkOptions {
  readonly parts: ChannelParts;
  /** The peer's windows. */
  readonly remotes: readonly BackendRemoteRegion[];
  readonly channels: number;
  /** Most rows that one call sends, and the number of the window that they go to. */
  readonly rows: number;
  readonly rowWindow: number;
}

export class NetworkLink {
  readonly backend: BackendName;
  /** By channel. Within one everything is in order, between two nothing is. */
  readonly queues: readonly OutQueue[];
  readonly #link: BackendLink;
  #local: BackendRegion;
  #remotes: readonly BackendRemoteRegion[];

  /** Fails as the link does. */
  static async open({ parts, remotes, channels, rows, rowWindow }: NetworkLinkOptions): Promise<NetworkLink> {
    const { link, local } = parts;
    const queues: OutQueue[] = [];
    for (let number = 0; number < channels; number++) {
      const channel = link.openChannel({ lane: number });
      queues.push(await OutQueue.open({ channel, local, remotes, rows: PartTable.ofCount(rows), rowWindow }));
    }
    return new NetworkLink(parts, remotes, queues);
  }

  private constructor(parts: ChannelParts, remotes: readonly BackendRemoteRegion[], queues: readonly OutQueue[]) {
    this.backend = parts.backend;
    this.#link = parts.link;
    this.#local = parts.local;
    this.#remotes = remotes;
    this.queues = queues;
  }

  /** Of all puts so far. */
  get bytes(): number {
    let bytes = 0;
    for (const queue of this.queues) bytes += queue.bytes;
    return bytes;
  }

  get error(): WeftlineError | undefined {
    const { error } = this.#link;
    if (error !== undefined) return error;
    for (const queue of this.queues) if (queue.error !== undefined) return queue.error;
    return undefined;
  }

  /** What a peer that has closed its side did not take, it did not need: its calls had ended. */
  get isDelivered(): boolean {
    if (this.isClosed) return true;
    for (const queue of this.queues) if (!queue.isDelivered) return false;
    return true;
  }

  /** The peer has closed its side. What it sent before is here. */
  get isClosed(): boolean {
    return this.#link.state === 'closed';
  }

  /** Hot path. Of a link that broke nothing is posted; waits look at `error`, and name the peer. */
  advance(): void {
    if (this.error !== undefined) return;
    try {
      for (const queue of this.queues) queue.advance();
    } catch (thrown) {
      // It broke since.
      if (this.error === undefined) throw thrown;
    }
  }

  /** The memory that puts come from is now this. */
  useMemory(memory: Registration): Promise<void> {
    this.#local = memory.regionBy(this.backend);
    return this.#use();
  }

  /** The windows that puts go to are now these. */
  useWindows(remotes: readonly BackendRemoteRegion[]): Promise<void> {
    this.#remotes = remotes;
    return this.#use();
  }

  /** A call begins: nothing of an earlier one is under way. */
  begin(): void {
    for (const queue of this.queues) queue.begin();
  }

  /** Adds to the abort cell in the peer's first window, if anything can still be sent. */
  giveUp(cell: number): void {
    try {
      const queue = this.queues[0]!;
      queue.signal(0, cell);
      queue.advance();
    } catch {
      // The peer will find the link broken.
    }
  }

  async #use(): Promise<void> {
    await Promise.all(this.queues.map((queue) => queue.use(this.#local, this.#remotes)));
  }
}
