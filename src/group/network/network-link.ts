// The channels to one peer on another host, and what waits to be sent on them.
import { PartTable } from '../../transport/part-table.ts';
import type { ChannelParts } from '../../agent/agent-options.ts';
import type { BackendName } from '../../agent/backends/backend-table.ts';
import type { BackendLink, BackendRegion, BackendRemoteRegion } from '../../agent/backend.ts';
import type { Registration } from '../../agent/registration.ts';
import type { WeftlineError } from '../../core/errors.ts';
import { OutQueue } from './out-queue.ts';

interface NetworkLinkOptions {
  readonly parts: ChannelParts;
  /** The peer's windows. */
  readonly remotes: readonly BackendRemoteRegion[];
  readonly channels: number;
  /** Most rows that one call sends, and the number of the window that they go to. */
  readonly rows: number;
  readonly rowWindow: number;
  /** True if the peer has said that it closed its object, which may share its agent with others. */
  readonly hasClosed: () => boolean;
}

/** What a rank that gives up puts to a peer's first window: its reason, and behind it the signal of it. */
interface AbortPlaces {
  /** The offset in this rank's memory. */
  readonly from: number;
  /** The offset in the peer's first window, as `cell`. */
  readonly to: number;
  readonly bytes: number;
  readonly cell: number;
}

export class NetworkLink {
  readonly backend: BackendName;
  /** Queues by channel. Everything is in order within one, nothing is between two. */
  readonly queues: readonly OutQueue[];
  readonly #link: BackendLink;
  /** The same with staging, as the agent has it. */
  readonly #whole: BackendLink;
  /** The queue of one message, which must not wait behind rows that have no room. */
  readonly #abort: OutQueue;
  readonly #hasClosed: () => boolean;
  #local: BackendRegion;
  #remotes: readonly BackendRemoteRegion[];

  /** Fails as the link does. */
  static async open(options: NetworkLinkOptions): Promise<NetworkLink> {
    const link = new NetworkLink(options);
    for (const queue of link.queues) await queue.use(link.#local, link.#remotes);
    return link;
  }

  private constructor({ parts, remotes, channels, rows, rowWindow, hasClosed }: NetworkLinkOptions) {
    this.backend = parts.backend;
    this.#whole = parts.link;
    const { link, local } = unstaged(parts.link, parts.local, remotes[0]!);
    this.#link = link;
    this.#hasClosed = hasClosed;
    this.#local = local;
    this.#remotes = remotes;
    const open = (lane: number): OutQueue =>
      new OutQueue({ channel: link.openChannel({ lane }), local, remotes, rows: PartTable.ofCount(rows), rowWindow });
    this.queues = Array.from({ length: channels }, (_, lane) => open(lane));
    this.#abort = new OutQueue({
      channel: link.openChannel({ lane: 0 }),
      local,
      remotes,
      rows: PartTable.ofCount(0),
      rowWindow,
    });
  }

  /** Bytes of all puts so far. */
  get bytes(): number {
    let bytes = 0;
    for (const queue of this.queues) bytes += queue.bytes;
    return bytes;
  }

  get error(): WeftlineError | undefined {
    const { error } = this.#link;
    if (error !== undefined) return error;
    for (const queue of this.queues) if (queue.error !== undefined) return queue.error;
    return this.#abort.error;
  }

  /** What a peer that has closed its side did not take, it did not need: its calls had ended. */
  get isDelivered(): boolean {
    return this.isClosed || this.isTaken;
  }

  /** The same where other ranks of the peer's host may need it: a peer that has closed its side still takes it for them. */
  get isTaken(): boolean {
    if (this.isGone) return true;
    for (const queue of this.queues) if (!queue.isDelivered) return false;
    return this.isTold;
  }

  /** The peer knows why this rank gave up, if it did, or its agent has closed. */
  get isTold(): boolean {
    return this.isGone || this.#abort.isDelivered;
  }

  /** The peer has closed its side: this object, or its agent. What it sent before is here. */
  get isClosed(): boolean {
    return this.#hasClosed() || this.isGone;
  }

  /** The peer's agent has closed, and takes nothing any more. */
  get isGone(): boolean {
    return this.#link.state === 'closed';
  }

  /** Hot path. Of a link that broke nothing is posted; waits look at `error`, and name the peer. */
  advance(): void {
    if (this.error !== undefined) return;
    try {
      for (const queue of this.queues) queue.advance();
      this.#abort.advance();
    } catch (thrown) {
      // It broke since.
      if (this.error === undefined) throw thrown;
    }
  }

  /** The memory that puts come from is now this. */
  useMemory(memory: Registration): Promise<void> {
    this.#local = unstaged(this.#whole, memory.regionBy(this.backend), this.#remotes[0]!).local;
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

  /** Adds to a cell in the peer's first window, if anything can still be sent. */
  tell(cell: number): void {
    try {
      const queue = this.queues[0]!;
      queue.signal(0, cell);
      queue.advance();
    } catch {
      // The peer will find the link broken.
    }
  }

  /** Says why, and that this rank has given up, if anything can still be sent. What has no room goes with a later advance(). */
  giveUp({ from, to, bytes, cell }: AbortPlaces): void {
    this.#abort.put(from, 0, to, bytes);
    this.#abort.signal(0, cell);
    try {
      this.#abort.advance();
      this.#abort.send();
    } catch {
      // The peer will find the link broken.
    }
  }

  /** This object's channels; the link belongs to the agent. */
  async close(): Promise<void> {
    await Promise.all([...this.queues, this.#abort].map((channel) => channel.close()));
  }

  /** Uses the new memory. A link that broke posts nothing any more, whatever memory it would come from. */
  async #use(): Promise<void> {
    try {
      await Promise.all([...this.queues, this.#abort].map((queue) => queue.use(this.#local, this.#remotes)));
    } catch (thrown) {
      if (this.error === undefined) throw thrown;
    }
  }
}

/** All of it is host memory: only where tests stage that as well is it staged. */
function unstaged(
  link: BackendLink,
  local: BackendRegion,
  remote: BackendRemoteRegion,
): { readonly link: BackendLink; readonly local: BackendRegion } {
  return link.unstaged?.(local, remote) ?? { link, local };
}
