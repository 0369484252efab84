// Reads of tensors of other ranks of this host: the kernel copies them from process to process, where it allows that.
import { addressOf } from '../native/library.ts';
import { copyError, IovecList, whyCopyFailed } from '../native/process-memory.ts';
import { type CallWait, remaining } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { LocalBarrier } from '../windows/local-barrier.ts';
import type { RankGroup } from '../world/rank-group.ts';

/** The begin of a rank's device memory in its process; `word` there holds `value`, by which it is recognised. */
interface PeerPlace {
  readonly pid: number;
  readonly base: number;
  readonly word: number;
  readonly value: number;
}

interface Ranks {
  readonly group: RankGroup;
  readonly device: CpuDevice;
  /** The barrier of the object's window: it knows why, if a rank gave the object up. */
  readonly barrier: LocalBarrier;
}

export class PeerMemory {
  readonly #peers: readonly PeerPlace[];
  readonly #ranks: readonly number[];
  readonly #me: number;
  readonly #barrier: LocalBarrier;
  readonly #list = new IovecList(1);

  /** `peers`: by rank of the group, of which all are on this host. */
  constructor({ group, barrier }: Ranks, peers: readonly PeerPlace[]) {
    this.#peers = peers;
    this.#barrier = barrier;
    this.#ranks = group.ranks;
    this.#me = group.rank;
  }

  /**
   * Collective, for an object of that name. Returns undefined on all ranks if the kernel forbids it to one of them, and for
   * ranks that are alone or on several hosts.
   */
  static async create(what: string, of: Ranks, wait: CallWait): Promise<PeerMemory | undefined> {
    const { group, device } = of;
    if (group.size === 1 || group.topology.hosts.length > 1) return undefined;
    const base = Number(addressOf(new Uint8Array(device.memory.buffer, 0, 8)));
    // Others may be in another namespace of processes, where this number is another process's.
    const value = (process.pid ^ Math.floor(Math.random() * 2 ** 31)) | 0;
    using storage = device.allocate(8);
    device.hostView('i32', storage.address, 1)[0] = value;
    const mine: PeerPlace = { pid: process.pid, base, word: storage.address, value };
    const peers = await group.allGather(`memory/${what}`, mine, remaining(wait));
    const memory = new PeerMemory(of, peers);
    const canRead = memory.#canReadAll(device, storage.address + 4);
    const all = await group.allGather(`readable/${what}`, canRead, remaining(wait));
    return all.every(Boolean) ? memory : undefined;
  }

  /**
   * Hot path. Copies bytes from an address of that rank's device to one of this rank's. Fails with the reason if a rank gave
   * the object up, and with WL_PEER_LOST.
   */
  read(rank: number, from: number, to: number, bytes: number): void {
    for (let done = 0; done < bytes;) {
      const copied = this.#copy(rank, from + done, to + done, bytes - done);
      if (copied <= 0) throw this.#failed(rank, -copied);
      done += copied;
    }
  }

  #copy(rank: number, from: number, to: number, bytes: number): number {
    const { pid, base } = this.#peers[rank]!;
    this.#list.set(0, { local: this.#peers[this.#me]!.base + to, remote: base + from, bytes });
    return this.#list.copy(pid, true, 0, 1);
  }

  #canReadAll(device: CpuDevice, scratch: number): boolean {
    const read = device.hostView('i32', scratch, 1);
    return this.#peers.every(({ word, value }, rank) => {
      read[0] = ~value;
      return this.#copy(rank, word, scratch, 4) === 4 && read[0] === value;
    });
  }

  #failed(rank: number, errno: number): Error {
    // A rank that gave up may have ended since, or be giving its memory back.
    this.#barrier.throwIfUnusable();
    if (whyCopyFailed(errno) !== 'gone') return copyError(true, errno);
    const lost = this.#ranks[rank]!;
    const message = `Rank ${lost} ended while this rank read its tensor`;
    return new WeftlineError('WL_PEER_LOST', message, { details: { ranks: [lost] } });
  }
}
