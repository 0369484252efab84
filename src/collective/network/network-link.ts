// The channels to one peer on another host, and what waits to be sent on them.
import type { ChannelParts } from '../../agent/agent-options.ts';
import type { BackendName } from '../../agent/backends/backend-table.ts';
import type { BackendRegion, BackendRemoteRegion } from '../../agent/backend.ts';
import type { Registration } from '../../agent/registration.ts';
import type { WeftlineError } from '../../core/errors.ts';
import { OutQueue } from './out-queue.ts';

export class NetworkLink {
  readonly backend: BackendName;
  /** By channel. Within one everything is in order, between two nothing is. */
  readonly queues: readonly OutQueue[];
  readonly #parts: ChannelParts;
  #local: BackendRegion;
  #remotes: readonly BackendRemoteRegion[];

  constructor(parts: ChannelParts, remotes: readonly BackendRemoteRegion[], channels: number) {
    this.backend = parts.backend;
    this.#parts = parts;
    this.#local = parts.local;
    this.#remotes = remotes;
    this.queues = Array.from({ length: channels }, () => new OutQueue(parts.link.openChannel(), parts.local, remotes));
  }

  /** Of all puts so far. */
  get bytes(): number {
    let bytes = 0;
    for (const queue of this.queues) bytes += queue.bytes;
    return bytes;
  }

  get error(): WeftlineError | undefined {
    const { error } = this.#parts.link;
    if (error !== undefined) return error;
    for (const queue of this.queues) if (queue.error !== undefined) return queue.error as WeftlineError;
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
    return this.#parts.link.state === 'closed';
  }

  /** Hot path. */
  advance(): void {
    if (this.isClosed) return;
    for (const queue of this.queues) queue.advance();
  }

  /** The memory that puts come from is now this. */
  useMemory(memory: Registration): void {
    this.#local = memory.regionBy(this.backend);
    this.#use();
  }

  /** The windows that puts go to are now these. */
  useWindows(remotes: readonly BackendRemoteRegion[]): void {
    this.#remotes = remotes;
    this.#use();
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

  #use(): void {
    for (const queue of this.queues) queue.use(this.#local, this.#remotes);
  }
}
