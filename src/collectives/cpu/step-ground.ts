// What calls in steps stand on, on one host or several: parts of the windows, mirrors, and why a wait cannot end well, which
// the window of this host says and ranks of other hosts tell.
import { availableParallelism } from 'node:os';
import { networkCells } from '../../abi/network.ts';
import type { HostNetwork } from '../../group/network/host-network.ts';
import { hostRoutes } from '../../group/network/host-routes.ts';
import { PeerWords } from '../../group/network/peer-words.ts';
import { type StepFailure, StepRunner } from '../../group/steps.ts';
import { type ErrorDetails, WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { SymmetricWindow } from '../../windows/symmetric-window.ts';
import type { Missing, WindowFailure } from '../../windows/abort-record.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { rankList } from '../../world/membership.ts';
import { isCrowded } from '../../transport/host/rank-cores.ts';
import type { RankBells } from '../../windows/wait.ts';
import { type MirroredRegions, type MirroredWindow, Mirrors, type RankParts, rankParts } from './window-regions.ts';

interface HostsFailureOptions {
  readonly group: RankGroup;
  readonly device: CpuDevice;
  readonly window: SymmetricWindow;
  readonly network: HostNetwork;
  /** Offsets in each rank's part of the window. */
  readonly cells: number;
  readonly aborts: number;
}

/** What a rank of another host has told this host, in the part of the rank that stands for it here. */
interface Told {
  readonly rank: number;
  readonly worldRank: number;
  readonly words: PeerWords;
}

class HostsFailure implements StepFailure {
  readonly #group: RankGroup;
  readonly #here: WindowFailure;
  readonly #network: HostNetwork;
  readonly #told: readonly Told[];

  constructor({ group, device, window, network, cells, aborts }: HostsFailureOptions) {
    const { topology, ranks } = group;
    this.#group = group;
    this.#here = window.barrier.failure;
    this.#network = network;
    const others = ranks.map((_, rank) => rank).filter((rank) => topology.hostOf(rank) !== topology.hostIndex);
    this.#told = others.map((rank) => {
      const { forwarder } = hostRoutes(topology.hosts, rank).ways.find(({ host }) => host === topology.hostIndex)!;
      const start = window.addresses[topology.scaleUpIndexOf(forwarder)]!;
      const words = new PeerWords(ranks, { buffer: device.memory.buffer, start, cells, aborts });
      return { rank, worldRank: ranks[rank]!, words };
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
    const told = this.#told.find((other) => other.rank === rank);
    return told !== undefined && told.words.count(rank, networkCells.closed) !== 0;
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

/** The windows that calls in steps work in, with what they know of other hosts. */
export class StepGround {
  readonly window: SymmetricWindow;
  /** Links to other hosts, of a group on several. */
  readonly network: HostNetwork | undefined;
  readonly parts: RankParts;
  readonly mirrors: Mirrors | undefined;
  readonly failure: StepFailure;
  readonly #group: RankGroup;

  constructor(
    group: RankGroup,
    device: CpuDevice,
    { window, across, regions }: MirroredWindow & { readonly regions: MirroredRegions },
  ) {
    this.#group = group;
    this.window = window;
    this.network = across?.network;
    this.parts = rankParts(group, window, { regions, mirrors: across?.mirrors ?? 0 });
    this.failure = window.barrier.failure;
    if (across === undefined) return;
    const failure = new HostsFailure({ ...across, group, device, window });
    const hasClosed = (rank: number): boolean => failure.hasClosed(rank);
    const { address } = window;
    this.failure = failure;
    this.mirrors = new Mirrors(across.network, { address, regions, mirrors: across.mirrors, hasClosed });
  }

  /** Fails when an earlier call left the ranks in disagreement, or a rank has given up. */
  throwIfUnusable(): void {
    this.window.barrier.throwIfUnusable(this.network);
    const reason = this.network && this.failure.reason();
    if (reason !== undefined) throw reason;
  }

  /** `polls`: steps also wait for what rings no bell. */
  runner(
    bells: RankBells,
    { failure, polls = false }: { readonly failure: StepFailure; readonly polls?: boolean },
  ): StepRunner {
    const { settings, topology } = this.#group;
    const outnumber = topology.scaleUpRanks.length > availableParallelism();
    return new StepRunner(bells, {
      failure,
      firstCause: (...cause) => this.#group.firstCause(...cause),
      network: this.mirrors,
      timeoutMs: settings.timeoutMs,
      spinUs: settings.collectiveSpinUs,
      polls,
      isCrowded: outnumber || (this.network !== undefined && isCrowded(settings)),
    });
  }
}
