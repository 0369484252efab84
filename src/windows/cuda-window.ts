// Symmetric GPU memory: the same number of bytes at every rank of a host, mapped into each of their processes.
import { alignUp } from '../abi/layout.ts';
import { remaining, startCall } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import { addMeter } from '../core/meters.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import { requirePeerAtomics } from '../device/cuda/peer-atomics.ts';
import type { Storage } from '../device/tensor.ts';
import { Departures, sweepKept } from './departures.ts';
import { agree, type WindowAgreement } from './window-agreement.ts';

/** What the driver shares at once; smaller allocations would show neighbours to the other processes as well. */
const SHARED_BLOCK = 2 << 20;

interface CudaWindowOptions extends WindowAgreement {
  readonly device: CudaDevice;
  /** Enqueues writes to this rank's part, which is zero, before any peer can write to it. */
  readonly fill?: (part: Storage) => void;
  /** Whose kernels add to words of peers' parts; create() fails where a link between GPUs carries no atomic operations. */
  readonly addsToPeers?: string;
}

export class CudaWindow implements Disposable {
  /** World ranks that share the window, by scale-up index, as all below. */
  readonly ranks: readonly number[];
  /** This rank's scale-up index. */
  readonly index: number;
  readonly bytes: number;
  /** Device address of each rank's part in this process, the own one included. */
  readonly addresses: readonly number[];
  /** This rank's part; tensors over the window hold on to it. */
  readonly storage: Storage;
  readonly #unmeter: () => void;
  readonly #peers: readonly Storage[];
  readonly #users: Departures;
  readonly #device: CudaDevice;
  readonly #timeoutMs: number;
  #isDisposed = false;

  /**
   * Collective over the group; the ranks of one host share a window. Returns when every rank has mapped all parts, which
   * hold zeros except where `fill` wrote. Every rank gets the same error when one cannot take part: WL_CONFIG_MISMATCH (sizes differ), WL_MEMORY,
   * WL_CUDA (no access to a peer's GPU), WL_UNSUPPORTED (`addsToPeers`) or WL_TIMEOUT.
   */
  static async create(creation: CudaWindowOptions): Promise<CudaWindow> {
    const options = startCall(creation, creation.group.settings.timeoutMs);
    const { group, device, bytes } = options;
    const { scaleUpRanks, scaleUpIndex } = group.topology;
    const own: Storage[] = [];
    const peers = new Map<number, Storage>();
    const users: Departures[] = [];
    sweepKept();
    try {
      const told = await agree(options, 'allocate', async () => {
        const storage = device.allocateShared(alignUp(Math.max(bytes, 1), SHARED_BLOCK));
        own.push(storage);
        options.fill?.(storage);
        // No peer may write before that is done.
        await device.stream.idle(remaining(options));
        const handle = scaleUpRanks.length === 1 ? '' : device.exportMemory(storage);
        const path = Departures.pathFor(group, options.name);
        if (scaleUpIndex === 0) users.push(new Departures(path, group));
        return { handle, path };
      });
      await agree(options, 'open', () => {
        if (scaleUpIndex > 0) users.push(new Departures(told[scaleUpRanks[0]!]!.path, group));
        for (const [index, rank] of scaleUpRanks.entries()) {
          if (index !== scaleUpIndex) peers.set(index, openPart(options, group.ranks[rank]!, told[rank]!.handle));
        }
      });
      return new CudaWindow(options, { storage: own[0]!, peers, users: users[0]! });
    } catch (error) {
      for (const part of [...peers.values(), ...users, ...own]) part[Symbol.dispose]();
      throw error;
    } finally {
      users[0]?.removeName();
    }
  }

  private constructor({ group, device, bytes }: CudaWindowOptions, { storage, peers, users }: CudaWindowParts) {
    const { scaleUpRanks, scaleUpIndex } = group.topology;
    this.ranks = scaleUpRanks.map((rank) => group.ranks[rank]!);
    this.index = scaleUpIndex;
    this.bytes = bytes;
    this.storage = storage;
    this.addresses = this.ranks.map((_, index) => (peers.get(index) ?? storage).address);
    this.#peers = [...peers.values()];
    this.#users = users;
    this.#device = device;
    this.#timeoutMs = group.settings.timeoutMs;
    this.#unmeter = addMeter(() => ({ windowBytes: bytes * this.ranks.length }));
  }

  /** Address of this rank's own part. */
  get address(): number {
    return this.storage.address;
  }

  /** Unmaps the peers' parts; no work of this rank may use them. Idempotent. */
  closePeers(): void {
    for (const peer of this.#peers) peer[Symbol.dispose]();
    this.#users.leave();
  }

  /**
   * Unmaps the window here; no work of this rank may use it. Not collective: this rank's part goes when the peers have
   * unmapped it or ended, because kernels of late ones may still write to it. Idempotent.
   */
  [Symbol.dispose](): void {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    this.#unmeter();
    this.closePeers();
    this.#users.release(this.storage, this.#device.context, this.#timeoutMs);
  }
}

interface CudaWindowParts {
  readonly storage: Storage;
  readonly peers: ReadonlyMap<number, Storage>;
  readonly users: Departures;
}

/** `rank`: of the world. */
function openPart(
  { group, device, name, bytes, addsToPeers }: CudaWindowOptions,
  rank: number,
  handle: string,
): Storage {
  let part: Storage | undefined;
  try {
    part = device.openPeerMemory(handle, bytes);
    if (addsToPeers !== undefined) requirePeerAtomics(device.context, part.address, addsToPeers);
    return part;
  } catch (cause) {
    part?.[Symbol.dispose]();
    if (!(cause instanceof WeftlineError)) throw cause;
    throw new WeftlineError(
      cause.code,
      `Rank ${group.worldRank} cannot map rank ${rank}'s part of window ${name}: ${cause.message}`,
      { details: { ...cause.details, peer: rank }, cause },
    );
  }
}
