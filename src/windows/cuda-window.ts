// Symmetric GPU memory: the same number of bytes at every rank of a host, mapped into each of their processes.
import { alignUp } from '../abi/layout.ts';
import { remaining, startCall } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import type { Storage } from '../device/tensor.ts';
import { agree, type WindowAgreement } from './window-agreement.ts';

/** What the driver shares at once; smaller allocations would show neighbours to the other processes as well. */
const SHARED_BLOCK = 2 << 20;

export interface CudaWindowOptions extends WindowAgreement {
  readonly device: CudaDevice;
}

export class CudaWindow implements Disposable {
  /** World ranks that share the window, ascending. */
  readonly ranks: readonly number[];
  readonly localRank: number;
  readonly bytes: number;
  /** Device address of each local rank's part in this process, the own one included. */
  readonly addresses: readonly number[];
  /** This rank's part; tensors over the window hold on to it. */
  readonly storage: Storage;
  readonly #peers: readonly Storage[];

  /**
   * Collective over the world; returns when every rank has mapped all parts, which are zero. Every rank gets the same
   * error when one cannot take part: WL_CONFIG_MISMATCH (sizes differ), WL_MEMORY, WL_CUDA (no access to a peer's GPU) or
   * WL_TIMEOUT.
   */
  static async create(creation: CudaWindowOptions): Promise<CudaWindow> {
    const options = startCall(creation, creation.world.settings.timeoutMs);
    const { world, device, bytes } = options;
    let storage: Storage | undefined;
    const peers = new Map<number, Storage>();
    try {
      const handles = await agree(options, 'allocate', async () => {
        storage = device.allocateShared(alignUp(Math.max(bytes, 1), SHARED_BLOCK));
        // No peer may write before the memory is zeroed.
        await device.stream.idle(remaining(options));
        return world.localRanks.length === 1 ? '' : device.exportMemory(storage);
      });
      await agree(options, 'open', () => {
        for (const rank of world.localRanks) {
          if (rank !== world.rank) peers.set(rank, openPart(options, rank, handles[rank] as string));
        }
      });
      return new CudaWindow(options, storage as unknown as Storage, peers);
    } catch (error) {
      for (const peer of peers.values()) peer[Symbol.dispose]();
      storage?.[Symbol.dispose]();
      throw error;
    }
  }

  private constructor({ world, bytes }: CudaWindowOptions, storage: Storage, peers: ReadonlyMap<number, Storage>) {
    this.ranks = world.localRanks;
    this.localRank = this.ranks.indexOf(world.rank);
    this.bytes = bytes;
    this.storage = storage;
    this.addresses = this.ranks.map((rank) => (peers.get(rank) ?? storage).address);
    this.#peers = [...peers.values()];
  }

  /** Address of this rank's own part. */
  get address(): number {
    return this.storage.address;
  }

  /** Unmaps the peers' parts, which every rank should have done before any frees its own. Idempotent. */
  closePeers(): void {
    for (const peer of this.#peers) peer[Symbol.dispose]();
  }

  /** Unmaps the window here; no work that uses it, of any rank, may be running. Not collective. Idempotent. */
  [Symbol.dispose](): void {
    this.closePeers();
    this.storage[Symbol.dispose]();
  }
}

function openPart({ world, device, name, bytes }: CudaWindowOptions, rank: number, handle: string): Storage {
  try {
    return device.openPeerMemory(handle, bytes);
  } catch (cause) {
    if (!(cause instanceof WeftlineError)) throw cause;
    throw new WeftlineError(
      cause.code,
      `Rank ${world.rank} cannot map rank ${rank}'s part of window ${name}: ${cause.message}`,
      { details: { ...cause.details, peer: rank }, cause },
    );
  }
}
