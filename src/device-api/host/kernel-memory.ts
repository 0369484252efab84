// The memory that kernels of a DeviceHost and its peers reach, and the requests that write to it.
import { MAX_COMMAND_OFFSET } from '../../abi/device-api.ts';
import { checkOptions, isWhole, type OptionNames } from '../../core/check-options.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { Tensor } from '../../device/tensor.ts';
import type { RequestShape } from '../service/command-queue.ts';
import type { DeviceSide, MappedRanges } from './device-side.ts';

/** The address of the memory as kernels of the device see it. Fails with WL_INVALID_ARGUMENT for what is not there. */
export function addressIn(side: DeviceSide, memory: Tensor | number, bytes: number): number {
  if (memory instanceof Tensor) {
    if (memory.storage.disposed) throw invalidArgument('memory', 'a closed tensor', 'a live one');
    if (bytes > memory.bytes) throw invalidArgument('bytes', bytes, `at most ${memory.bytes}, those of the tensor`);
    return side.addressOf(memory);
  }
  // An invalid address in a native call would end the process.
  if (!Number.isSafeInteger(memory) || memory <= 0) {
    throw invalidArgument('address', memory, 'a tensor, or an address of memory');
  }
  if (side.owns(memory, bytes)) return memory;
  const [where, advice] =
    side.ordinal === undefined
      ? ['this process', "a CPU tensor's address is an offset in WebAssembly memory: pass the tensor itself"]
      : ['the GPU', 'pass a tensor of the GPU, or an address in its memory'];
  const what = `${memory} is no address of ${bytes} readable and writable bytes of ${where}`;
  throw new WeftlineError('WL_INVALID_ARGUMENT', `Invalid memory: ${what}; ${advice}`, {
    details: { argument: 'memory', value: memory, bytes },
  });
}

// The registered memory of a DeviceHost, and ranges of it.

/** Memory that requests may read from and peers may write to. */
export interface RegisteredVram {
  /** Number of the region at this host. */
  readonly id: number;
  /** The address on the device. */
  readonly address: number;
  readonly bytes: number;
  /** The GPU whose kernels use it, by its ordinal; 0 on the CPU. */
  readonly deviceId: number;
}

/** A range of a registered region. */
export interface VramRange {
  readonly memory: RegisteredVram;
  readonly offset?: number;
  readonly bytes?: number;
}

/** Checks the size of memory that is to be registered. Fails with WL_INVALID_ARGUMENT. */
export function checkBytes(bytes: number): void {
  if (Number.isSafeInteger(bytes) && bytes >= 1 && bytes <= MAX_COMMAND_OFFSET) return;
  throw invalidArgument('bytes', bytes, `1 to ${MAX_COMMAND_OFFSET}`);
}

const rangeNames: OptionNames<VramRange> = { memory: true, offset: true, bytes: true };

export class VramRegions {
  readonly #regions = new Map<number, RegisteredVram>();

  /** `side`: the one whose kernels use the memory. */
  add({ ordinal = 0 }: DeviceSide, memory: Omit<RegisteredVram, 'deviceId'>): RegisteredVram {
    const region = { ...memory, deviceId: ordinal };
    this.#regions.set(region.id, region);
    return region;
  }

  remove({ id }: RegisteredVram): void {
    this.#regions.delete(id);
  }

  /** Whole numbers, inside of registered memory. Fails with WL_INVALID_ARGUMENT. */
  range(range: VramRange): Required<VramRange> {
    checkOptions(range, rangeNames, 'range');
    const { memory, offset = 0, bytes } = range;
    const known = this.known(memory);
    const size = bytes ?? (isWhole(offset, 0) ? known.bytes - offset : 0);
    const isInside = Number.isInteger(offset) && Number.isInteger(size) && offset >= 0 && size > 0;
    if (isInside && offset + size <= known.bytes) return { memory: known, offset, bytes: size };
    const shown = isWhole(offset, 0) && isWhole(size, 0) ? [offset, offset + size] : [offset, bytes];
    throw invalidArgument('range', shown, `inside the ${known.bytes} bytes of its memory`);
  }

  /** Fails with WL_INVALID_ARGUMENT for memory that is not registered here, or no longer. */
  known(memory: RegisteredVram): RegisteredVram {
    const id = (memory as RegisteredVram | null | undefined)?.id;
    const known = id === undefined ? undefined : this.#regions.get(id);
    if (known !== undefined) return known;
    const expected = 'what registerVram() of this host returned, until it is deregistered';
    if (!isWhole(id, 0)) throw invalidArgument('memory', memory, expected);
    const what = `region ${id}, which this host has not registered, or has deregistered already`;
    throw new WeftlineError('WL_INVALID_ARGUMENT', `Invalid memory: expected ${expected}, got ${what}`, {
      details: { argument: 'memory', value: id, expected },
    });
  }
}

// The requests of a DeviceHost and the peers they go to, by the numbers that kernels and commands know them by.

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
  /** Requests by number, for kernels that are functions of TypeScript. */
  readonly shapes: (RequestShape | undefined)[] = [];
  readonly #open = new Map<number, OpenRequest>();
  /** Names by the number that requests and trap records carry; one that was removed leaves room for another. */
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
