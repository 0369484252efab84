// Why a wait for ranks of several hosts cannot end well: what the window of this host says, and what ranks of other hosts have
// told it.
import { networkCells } from '../../abi/network.ts';
import { type ErrorDetails, WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Missing, WindowFailure } from '../../windows/abort-record.ts';
import type { SymmetricWindow } from '../../windows/symmetric-window.ts';
import { rankList } from '../../world/membership.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { StepFailure } from '../steps.ts';
import type { HostNetwork } from './host-network.ts';
import { PeerWords } from './peer-words.ts';

interface HostsFailureOptions {
  readonly group: RankGroup;
  readonly device: CpuDevice;
  readonly window: SymmetricWindow;
  readonly network: HostNetwork;
  /** Offsets in each rank's part of the window. */
  readonly cells: number;
  readonly aborts: number;
}

/** A rank of another host, as this host hears of it. */
interface Told {
  readonly rank: number;
  readonly worldRank: number;
  /** The rank that stands for it here. */
  readonly forwarder: number;
  /** What it says in the part of the forwarder. */
  readonly words: PeerWords;
}

export class HostsFailure implements StepFailure {
  readonly #group: RankGroup;
  readonly #here: WindowFailure;
  readonly #network: HostNetwork;
  readonly #told: readonly Told[];

  constructor({ group, device, window, network, cells, aborts }: HostsFailureOptions) {
    const { topology, ranks } = group;
    this.#group = group;
    this.#here = window.barrier.failure;
    this.#network = network;
    this.#told = [...network.routes.takers].map(([rank, { forwarder }]) => {
      const start = window.addresses[topology.scaleUpIndexOf(forwarder)]!;
      const words = new PeerWords(ranks, { buffer: device.memory.buffer, start, cells, aborts });
      return { rank, worldRank: ranks[rank]!, forwarder, words };
    });
  }

  /** Hot path. When ranks of this host gave up, those of other hosts hear it from this one too. */
  reason(): WeftlineError | undefined {
    const reason = this.#here.reason() ?? this.#heard();
    if (reason !== undefined) this.#network.giveUp(reason);
    return reason;
  }

  rankOf(rank: number): number {
    return this.#group.ranks[rank]!;
  }

  /** Whether that rank of another host has closed its side. */
  hasClosed(rank: number): boolean {
    const words = this.toldBy(rank)?.words;
    return words !== undefined && words.count(rank, networkCells.closed) !== 0;
  }

  /** What this host hears of a rank of another one; undefined of its own ranks. */
  toldBy(rank: number): Told | undefined {
    return this.#told.find((other) => other.rank === rank);
  }

  raise(error: unknown): void {
    this.#here.raise(error);
    this.#network.giveUp(error);
  }

  reasonToGiveUp(missing: Missing, signal: AbortSignal | undefined): unknown {
    const { topology } = this.#group;
    const here: Missing = () =>
      missing().flatMap((rank) =>
        topology.hostOf(rank) === topology.hostIndex ? [topology.scaleUpIndexOf(rank)] : [],
      );
    return this.#heard() ?? this.#here.reasonToGiveUp(here, signal) ?? this.#left(missing) ?? this.#broken(missing);
  }

  timeout(missing: Missing, timeoutMs: number, hint: string, details: ErrorDetails = {}): WeftlineError {
    const ranks = missing().map((rank) => this.#group.ranks[rank]!);
    const message = `${rankList(ranks, 'Rank')} did not arrive within ${timeoutMs} ms; ${hint}`;
    return new WeftlineError('WL_TIMEOUT', message, { details: { ...details, ranks, timeoutMs } });
  }

  #heard(): WeftlineError | undefined {
    for (const { rank, words } of this.#told) {
      const reason = words.told(rank);
      if (reason !== undefined) return reason;
    }
    return undefined;
  }

  #left(missing: Missing): WeftlineError | undefined {
    for (const { rank, worldRank, words } of this.#told) {
      if (words.count(rank, networkCells.closed) === 0) continue;
      // ORDER: what it sent before it closed its side is here by now, but may have come since the last look.
      if (!missing().includes(rank)) continue;
      const message = `Rank ${worldRank} ended or left while this rank was waiting for it`;
      return new WeftlineError('WL_PEER_LOST', message, { details: { ranks: [worldRank] }, rank: worldRank });
    }
    return undefined;
  }

  /** Why a link that this rank has itself is broken. */
  #broken(missing: Missing): unknown {
    try {
      this.#network.throwIfBroken({
        isDone: () => missing().length === 0,
        awaits: (peer) => missing().includes(peer),
        describe: () => 'This rank waits for ranks of other hosts',
      });
      return undefined;
    } catch (error) {
      return error;
    }
  }
}
