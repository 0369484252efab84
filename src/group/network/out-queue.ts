// What one channel to a peer is still to send: puts, rows and signals in order, posted as the channel has room. Hot path.
import type { BackendChannel, BackendRegion, BackendRemoteRegion, PutPlace, SharedParts } from '../../agent/backend.ts';
import type { WeftlineError } from '../../core/errors.ts';
import type { PartTable } from '../../transport/part-table.ts';
import { MAX_RANGE_BYTES } from '../../transport/send/range-list.ts';

/** Memory of the peer that puts go to, by the number of the window that it belongs to. */
type RemoteWindows = readonly BackendRemoteRegion[];

interface OutQueueOptions {
  readonly channel: BackendChannel;
  /** The region that puts come from. */
  readonly local: BackendRegion;
  readonly remotes: RemoteWindows;
  /** Places of rows of one call. This queue's own. */
  readonly rows: PartTable;
  /** The window that rows go to. */
  readonly rowWindow: number;
}

const kinds = { put: 0, signal: 1, rows: 2 } as const;
const FIRST_CAPACITY = 64;

export class OutQueue {
  /** Bytes of the puts and rows so far. */
  bytes = 0;
  readonly #channel: BackendChannel;
  readonly #rowWindow: number;
  readonly #rows: PartTable;
  readonly #place: PutPlace;
  #remotes: RemoteWindows;
  /** What the channel has made of the table; it takes rows one by one where it makes nothing of it. */
  #shared: SharedParts | undefined;
  /** Longest row of the table. */
  #mostBytes = Number.POSITIVE_INFINITY;
  /** Rows of this call that stand in the table. */
  #rowCount = 0;
  /** Columns, so that a call that sends much makes no objects. For rows, `local` is the first and `length` their number. */
  #kind: Uint8Array = new Uint8Array(FIRST_CAPACITY);
  #local: Float64Array = new Float64Array(FIRST_CAPACITY);
  #remote: Float64Array = new Float64Array(FIRST_CAPACITY);
  #length: Float64Array = new Float64Array(FIRST_CAPACITY);
  #window: Uint8Array = new Uint8Array(FIRST_CAPACITY);
  #next = 0;
  #end = 0;

  /** Rows go one by one until `use` has been called. */
  constructor({ channel, local, remotes, rows, rowWindow }: OutQueueOptions) {
    this.#channel = channel;
    this.#rows = rows;
    this.#rowWindow = rowWindow;
    this.#remotes = remotes;
    this.#place = { local, localOffset: 0, remote: remotes[0]!, remoteOffset: 0, bytes: 0 };
  }

  /** The memory that puts come from and go to from now on. Nothing may wait or be under way here. */
  async use(local: BackendRegion, remotes: RemoteWindows): Promise<void> {
    await this.#shared?.release();
    this.#shared = undefined;
    this.#place.local = local;
    this.#remotes = remotes;
    if (this.#rows.count > 0)
      this.#shared = await this.#channel.shareParts?.(this.#rows, local, remotes[this.#rowWindow]!);
    this.#mostBytes = this.#shared === undefined ? Number.POSITIVE_INFINITY : MAX_RANGE_BYTES;
  }

  /** A call begins: nothing of an earlier one is under way here. */
  begin(): void {
    this.#rowCount = 0;
  }

  /** `local` is an address in this rank's memory; `remote` an offset in a window's mapping at the peer. */
  put(local: number, window: number, remote: number, bytes: number): void {
    if (bytes === 0) return;
    this.bytes += bytes;
    this.#add(kinds.put, local, window, remote, bytes);
  }

  /** The same for a row, of which many go as one operation. Longer ones than that takes, and those without a place, go alone. */
  putRow(local: number, remote: number, bytes: number): void {
    const { localOffset, remoteOffset, bytes: lengths, capacity } = this.#rows;
    const at = this.#rowCount;
    if (bytes === 0 || bytes > this.#mostBytes || at === capacity) {
      this.put(local, this.#rowWindow, remote, bytes);
      return;
    }
    const last = this.#end - 1;
    const isRun = last >= this.#next && this.#kind[last] === kinds.rows;
    this.bytes += bytes;
    if (
      isRun &&
      lengths[at - 1]! + bytes <= this.#mostBytes &&
      local - (localOffset[at - 1] ?? 0) === lengths[at - 1] &&
      remote - (remoteOffset[at - 1] ?? 0) === lengths[at - 1]
    ) {
      lengths[at - 1] = lengths[at - 1]! + bytes;
      return;
    }
    localOffset[at] = local;
    remoteOffset[at] = remote;
    lengths[at] = bytes;
    this.#rowCount++;
    if (isRun) this.#length[last] = this.#length[last]! + 1;
    else this.#add(kinds.rows, at, this.#rowWindow, 0, 1);
  }

  /** Adds 1 to a cell behind everything before it. */
  signal(window: number, remote: number): void {
    this.#add(kinds.signal, 0, window, remote, 0);
  }

  /** Posts what the channel has room for. True if anything was posted. */
  advance(): boolean {
    const first = this.#next;
    while (this.#next < this.#end && this.#post(this.#next)) this.#next++;
    const hasPosted = this.#next !== first;
    if (this.#next === this.#end) {
      this.#next = 0;
      this.#end = 0;
    }
    return hasPosted;
  }

  /** What was posted goes now; else the next poll of the agent sends it. */
  send(): void {
    this.#channel.send?.();
  }

  /** Nothing waits here for room, and the carrier needs no further call for what it has. */
  get isPosted(): boolean {
    return this.#next === this.#end && this.#channel.needsCalls !== true;
  }

  /** Everything that was queued is at the peer. */
  get isDelivered(): boolean {
    return this.#next === this.#end && this.#channel.delivered === this.#channel.posted;
  }

  get error(): WeftlineError | undefined {
    return this.#channel.error;
  }

  /** What is under way is withdrawn; what waits is never posted. */
  async close(): Promise<void> {
    await this.#channel.close();
    await this.#shared?.release();
  }

  /** False if there was no room for all of it. */
  #post(at: number): boolean {
    const remote = this.#remotes[this.#window[at]!]!;
    const kind = this.#kind[at];
    if (kind === kinds.signal) return this.#channel.signal(remote, this.#remote[at]!, 1);
    if (kind === kinds.rows && this.#shared !== undefined) return this.#shared.put(this.#local[at]!, this.#length[at]!);
    const place = this.#place;
    place.remote = remote;
    if (kind === kinds.rows) return this.#putRows(at, place);
    place.localOffset = this.#local[at]!;
    place.remoteOffset = this.#remote[at]!;
    place.bytes = this.#length[at]!;
    return this.#channel.put(place);
  }

  #putRows(at: number, place: PutPlace): boolean {
    const { localOffset, remoteOffset, bytes } = this.#rows;
    for (; this.#length[at]! > 0; this.#length[at]! -= 1) {
      const row = this.#local[at]!;
      place.localOffset = localOffset[row]!;
      place.remoteOffset = remoteOffset[row]!;
      place.bytes = bytes[row]!;
      if (!this.#channel.put(place)) return false;
      this.#local[at] = row + 1;
    }
    return true;
  }

  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per put
  #add(kind: number, local: number, window: number, remote: number, bytes: number): void {
    if (this.#end === this.#local.length) this.#grow();
    const at = this.#end++;
    this.#kind[at] = kind;
    this.#local[at] = local;
    this.#remote[at] = remote;
    this.#length[at] = bytes;
    this.#window[at] = window;
  }

  #grow(): void {
    this.#kind = wider(this.#kind, new Uint8Array(this.#kind.length * 2));
    this.#window = wider(this.#window, new Uint8Array(this.#window.length * 2));
    this.#local = wider(this.#local, new Float64Array(this.#local.length * 2));
    this.#remote = wider(this.#remote, new Float64Array(this.#remote.length * 2));
    this.#length = wider(this.#length, new Float64Array(this.#length.length * 2));
  }
}

function wider<T extends Uint8Array | Float64Array>(column: T, grown: T): T {
  grown.set(column);
  return grown;
}
