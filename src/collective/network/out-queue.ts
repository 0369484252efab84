// What one channel to a peer is still to send: puts and signals in order, posted as the channel has room. Hot path.
import type { BackendChannel, BackendRegion, BackendRemoteRegion, PutPlace } from '../../agent/backend.ts';

/** Memory of the peer that puts go to, by the number of the window that it belongs to. */
export type RemoteWindows = readonly BackendRemoteRegion[];

const SIGNAL = -1;
const FIRST_CAPACITY = 64;

export class OutQueue {
  /** Bytes of the puts so far. */
  bytes = 0;
  readonly #channel: BackendChannel;
  readonly #place: PutPlace;
  #remotes: RemoteWindows;
  /** In columns, so that a call that sends many rows makes no objects. */
  #local: Float64Array = new Float64Array(FIRST_CAPACITY);
  #remote: Float64Array = new Float64Array(FIRST_CAPACITY);
  #length: Float64Array = new Float64Array(FIRST_CAPACITY);
  #window: Uint8Array = new Uint8Array(FIRST_CAPACITY);
  #next = 0;
  #end = 0;

  constructor(channel: BackendChannel, local: BackendRegion, remotes: RemoteWindows) {
    this.#channel = channel;
    this.#remotes = remotes;
    this.#place = { local, localOffset: 0, remote: remotes[0]!, remoteOffset: 0, bytes: 0 };
  }

  /** For what is put from now on. Nothing may wait here. */
  use(local: BackendRegion, remotes: RemoteWindows): void {
    this.#place.local = local;
    this.#remotes = remotes;
  }

  /** `local` is an address in this rank's memory; `remote` an offset in a window's mapping at the peer. */
  put(local: number, window: number, remote: number, bytes: number): void {
    if (bytes === 0) return;
    this.bytes += bytes;
    this.#add(local, window, remote, bytes);
  }

  /** The next put starts where the last one ends, on both sides: they become one. False if that is not so. */
  extend(local: number, window: number, remote: number, bytes: number): boolean {
    const last = this.#end - 1;
    if (last < this.#next || this.#length[last] === SIGNAL || this.#window[last] !== window) return false;
    const length = this.#length[last]!;
    if (this.#local[last]! + length !== local || this.#remote[last]! + length !== remote) return false;
    this.#length[last] = length + bytes;
    this.bytes += bytes;
    return true;
  }

  /** Adds 1 to a cell behind all earlier puts. */
  signal(window: number, remote: number): void {
    this.#add(0, window, remote, SIGNAL);
  }

  /** Posts what the channel has room for. True if anything was posted. */
  advance(): boolean {
    const first = this.#next;
    const place = this.#place;
    while (this.#next < this.#end) {
      const at = this.#next;
      const remote = this.#remotes[this.#window[at]!]!;
      const bytes = this.#length[at]!;
      if (bytes === SIGNAL) {
        if (!this.#channel.signal(remote, this.#remote[at]!, 1)) break;
      } else {
        place.remote = remote;
        place.localOffset = this.#local[at]!;
        place.remoteOffset = this.#remote[at]!;
        place.bytes = bytes;
        if (!this.#channel.put(place)) break;
      }
      this.#next++;
    }
    if (this.#next === this.#end) {
      this.#next = 0;
      this.#end = 0;
    }
    return this.#next !== first;
  }

  /** Everything that was queued is at the peer. */
  get isDelivered(): boolean {
    return this.#next === this.#end && this.#channel.delivered === this.#channel.posted;
  }

  /** Puts and signals that are not delivered yet, for errors. */
  get pending(): number {
    return this.#end - this.#next + this.#channel.posted - this.#channel.delivered;
  }

  get error(): Error | undefined {
    return this.#channel.error;
  }

  close(): Promise<void> {
    return this.#channel.close();
  }

  #add(local: number, window: number, remote: number, bytes: number): void {
    if (this.#end === this.#local.length) this.#grow();
    const at = this.#end++;
    this.#local[at] = local;
    this.#remote[at] = remote;
    this.#length[at] = bytes;
    this.#window[at] = window;
  }

  #grow(): void {
    this.#local = wider(this.#local);
    this.#remote = wider(this.#remote);
    this.#length = wider(this.#length);
    const window = new Uint8Array(this.#window.length * 2);
    window.set(this.#window);
    this.#window = window;
  }
}

function wider(column: Float64Array): Float64Array {
  const grown = new Float64Array(column.length * 2);
  grown.set(column);
  return grown;
}
