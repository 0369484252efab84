// Puts and signals that are carried out at once, in order. Hot path: no allocation but that of a 64-bit sum.
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import { copyMemory } from '../../../native/libc.ts';
import { viewAt } from '../../../native/library.ts';
import { RangeList } from '../../../native/process-memory.ts';
import type { BackendChannel, BackendRemoteRegion, PutPlace } from '../../backend.ts';
import type { LocalLink } from './local-link.ts';
import type { LocalRegion } from './local-region.ts';
import type { LocalRemoteRegion } from './remote-region.ts';

export class LocalChannel implements BackendChannel {
  readonly #link: LocalLink;
  readonly #range: RangeList = new RangeList(1);
  readonly #range0 = { local: 0, remote: 0, bytes: 0 };
  readonly #cells = new Map<LocalRemoteRegion, BigInt64Array>();
  #error: WeftlineError | undefined;
  #posted = 0;

  constructor(link: LocalLink) {
    this.#link = link;
  }

  get posted(): number {
    return this.#posted;
  }

  get delivered(): number {
    return this.#posted;
  }

  get error(): WeftlineError | undefined {
    return this.#error ?? this.#link.error;
  }

  put(place: PutPlace): boolean {
    this.#require(place.remote as LocalRemoteRegion);
    const local = place.local as LocalRegion;
    const { reach } = place.remote as LocalRemoteRegion;
    if (local.device !== undefined || reach.kind === 'cuda') throw noGpuChannel();
    const [from, to] = [local.address + place.localOffset, reach.address + place.remoteOffset];
    if (reach.kind === 'mapped') copyMemory(to, from, place.bytes);
    else this.#copyToProcess(from, to, place.bytes);
    this.#posted += 1;
    return true;
  }

  signal(remote: BackendRemoteRegion, offset: number, add: number): boolean {
    const region = remote as LocalRemoteRegion;
    this.#require(region);
    if (offset % 8 !== 0 || offset < 0 || offset + 8 > region.bytes) {
      throw invalidArgument('offset of a signal', offset, `a multiple of 8 from 0 to ${region.bytes - 8}`);
    }
    let cells = this.#cells.get(region);
    if (cells === undefined) {
      cells = cellsOf(region);
      this.#cells.set(region, cells);
    }
    // ORDER: the puts before it are ordinary stores of this thread, which this makes visible.
    Atomics.add(cells, offset / 8, BigInt(add));
    this.#posted += 1;
    return true;
  }

  close(): Promise<void> {
    this.#error ??= new WeftlineError('WL_CLOSED', `A channel to ${this.#link.peerName} was closed`);
    this.#cells.clear();
    return Promise.resolve();
  }

  #require(region: LocalRemoteRegion): void {
    if (this.#error !== undefined) throw this.#error;
    this.#link.requireUsable();
    const refusal = this.#link.refusal(region);
    if (refusal !== undefined) throw refusal;
  }

  #copyToProcess(from: number, to: number, bytes: number): void {
    this.#range0.local = from;
    this.#range0.remote = to;
    this.#range0.bytes = bytes;
    this.#range.set(0, this.#range0);
    if (this.#range.copy(this.#link.pid, false, 0, 1) === bytes) return;
    this.#error = new WeftlineError(
      'WL_SHARED_MEMORY',
      `A put of ${bytes} bytes into memory of ${this.#link.peerName} failed: the process ended or no longer has it`,
      { details: { peer: this.#link.peerName, bytes } },
    );
    throw this.#error;
  }
}

function cellsOf({ reach, bytes }: LocalRemoteRegion): BigInt64Array {
  if (reach.kind === 'mapped' && reach.address % 8 === 0) {
    return new BigInt64Array(viewAt(reach.address, Math.floor(bytes / 8) * 8));
  }
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    'Signals between processes of one host need cells in memory from agent.allocate(): only that is mapped by both sides',
  );
}

function noGpuChannel(): WeftlineError {
  return new WeftlineError(
    'WL_UNSUPPORTED',
    'A channel of the local backend moves host memory: GPUs of one host write to each other directly',
  );
}
