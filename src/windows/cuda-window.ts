// Symmetric GPU memory: the same number of bytes at every rank of a host, mapped into each of their processes.
import { alignUp } from '../abi/layout.ts';
import { remaining, startCall } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import { addMeter } from '../core/meters.ts';
import type { CudaDevice } from '../device/cuda/cuda-device.ts';
import type { Storage } from '../device/tensor.ts';
import { agree, type WindowAgreement } from './window-agreement.ts';

/** What the driver shares at once; smaller allocations would show neighbours to the other processes as well. */
const SHARED_BLOCK = 2 << 20;

export interface CudaWindowOptions extends WindowAgreement {
  readonly device: CudaDevice;
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

  /**
   * Collective over the group; the ranks of one host share a window. Returns when every rank has mapped all parts, which
   * are zero. Every rank gets the same error when one cannot take part: WL_CONFIG_MISMATCH (sizes differ), WL_MEMORY,
   * WL_CUDA (no access to a peer's GPU) or WL_TIMEOUT.
   */
  static async create(creation: CudaWindowOptions): Promise<CudaWindow> {
    const options = startCall(creation, creation.group.settings.timeoutMs);
    const { group, device, bytes } = options;
    const { scaleUpRanks, scaleUpIndex } = group.topology;
    const own: Storage[] = [];
    const peers = new Map<number, Storage>();
    try {
      const handles = await agree(options, 'allocate', async () => {
        const storage = device.allocateShared(alignUp(Math.max(bytes, 1), SHARED_BLOCK));
        own.push(storage);
        // No peer may write before the memory is zeroed.
        await device.stream.idle(remaining(options));
        return scaleUpRanks.length === 1 ? '' : device.exportMemory(storage);
      });
      await agree(options, 'open', () => {
        for (const [index, rank] of scaleUpRanks.entries()) {
          if (index !== scaleUpIndex) peers.set(index, openPart(options, group.ranks[rank]!, handles[rank]!));
        }
      });
      return new CudaWindow(options, own[0]!, peers);
    } catch (error) {
      for (const part of [...peers.values(), ...own]) part[Symbol.dispose]();
      throw error;
    }
  }

  private constructor({ group, bytes }: CudaWindowOptions, storage: Storage, peers: ReadonlyMap<number, Storage>) {
    const { scaleUpRanks, scaleUpIndex } = group.topology;
    this.ranks = scaleUpRanks.map((rank) => group.ranks[rank]!);
    this.index = scaleUpIndex;
    this.bytes = bytes;
    this.storage = storage;
    this.addresses = this.ranks.map((_, index) => (peers.get(index) ?? storage).address);
    this.#peers = [...peers.values()];
    this.#unmeter = addMeter(() => ({ windowBytes: bytes * this.ranks.length }));
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
    this.#unmeter();
    this.closePeers();
    this.storage[Symbol.dispose]();
  }
}

/** `rank`: of the world. */
function openPart({ group, device, name, bytes }: CudaWindowOptions, rank: number, handle: string): Storage {
  try {
    return device.openPeerMemory(handle, bytes);
  } catch (cause) {
    if (!(cause instanceof WeftlineError)) throw cause;
    throw new WeftlineError(
      cause.code,
      `Rank ${group.worldRank} cannot map rank ${rank}'s part of window ${name}: ${cause.message}`,
      { details: { ...cause.details, peer: rank }, cause },
    );
  }
}
