// What calls in steps stand on, on one host or several: parts of the windows, mirrors, and why a wait cannot end well.
import { availableParallelism } from 'node:os';
import type { HostNetwork } from '../../group/network/host-network.ts';
import { HostsFailure } from '../../group/network/hosts-failure.ts';
import { type StepFailure, StepRunner } from '../../group/steps.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { SymmetricWindow } from '../../windows/symmetric-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { isCrowded } from '../../transport/host/rank-cores.ts';
import type { RankBells } from '../../windows/wait.ts';
import { type MirroredRegions, type MirroredWindow, Mirrors, type RankParts, rankParts } from './window-regions.ts';

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
