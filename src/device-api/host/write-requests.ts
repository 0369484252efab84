// The requests of a DeviceHost and the peers they go to, by the numbers that kernels and commands know them by.
import { invalidArgument } from '../../core/errors.ts';
import type { RequestShape } from '../service/request-shape.ts';
import type { DeviceSide, MappedRanges } from './device-side.ts';
import type { RegisteredVram } from './vram-regions.ts';

/** One local range and the ranges of one peer that kernels may write to. */
export interface WriteRequest extends RequestShape {
  readonly peerName: string;
  /** "direct: …", "queue: …": how its writes travel, and why. */
  readonly path: string;
}

/** What a request holds until it is released. */
interface OpenRequest {
  readonly request: WriteRequest;
  readonly memory: RegisteredVram;
  readonly side: DeviceSide;
  /** The peer's ranges in this process; undefined if its writes go through a queue. */
  readonly mapping: MappedRanges | undefined;
  readonly handles: number[];
}

export class WriteRequests {
  /** By number, for kernels that are functions of TypeScript. */
  readonly shapes: (RequestShape | undefined)[] = [];
  readonly #open = new Map<number, OpenRequest>();
  /** By the number that requests and trap records carry; a name that was removed leaves room for another. */
  readonly #peers: (string | undefined)[] = [];

  get all(): Iterable<OpenRequest> {
    return this.#open.values();
  }

  add(open: OpenRequest): void {
    const { number } = open.request;
    this.#open.set(number, open);
    this.shapes[number] = open.request;
  }

  /** Fails with WL_INVALID_ARGUMENT for a request of another host, or one that was released. */
  known(request: WriteRequest): OpenRequest {
    const number = (request as WriteRequest | null | undefined)?.number;
    const open = number === undefined ? undefined : this.#open.get(number);
    if (open !== undefined && open.request === request) return open;
    throw invalidArgument('request', number ?? request, 'what createWriteReq() of this host returned, not released');
  }

  /** Kernels and commands can no longer use it; what it held is free again. */
  remove({ request, side, mapping, handles }: OpenRequest): void {
    this.#open.delete(request.number);
    this.shapes[request.number] = undefined;
    for (const handle of handles) side.removeRequest(handle);
    mapping?.[Symbol.dispose]();
  }

  /** Fails with WL_INVALID_ARGUMENT while a request uses what `uses` says. */
  checkUnused(argument: string, uses: (open: OpenRequest) => boolean): void {
    for (const open of this.#open.values()) {
      if (!uses(open)) continue;
      const { number, peerName } = open.request;
      throw invalidArgument(argument, `used by request ${number} to ${peerName}`, 'unused: release its requests first');
    }
  }

  peerName(number: number): string | undefined {
    return this.#peers[number];
  }

  knowsPeer(name: string): boolean {
    return this.#peers.includes(name);
  }

  /** The peer's number, a new one if it has none. */
  addPeer(name: string): number {
    const known = this.#peers.indexOf(name);
    if (known !== -1) return known;
    const free = this.#peers.indexOf(undefined);
    const number = free === -1 ? this.#peers.length : free;
    this.#peers[number] = name;
    return number;
  }

  removePeer(name: string): void {
    const number = this.#peers.indexOf(name);
    if (number !== -1) this.#peers[number] = undefined;
  }
}
