// What ExpertMover.create() takes, and the checks of it.
import { checkOptions, isWhole, type OptionNames } from '../../core/check-options.ts';
import { invalidArgument } from '../../core/errors.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { type ExpertPlan, requirePlan } from './expert-plan.ts';

/** An expert whose weights are to be loaded. */
export interface ExpertToLoad {
  readonly layer: number;
  /** Its logical number. */
  readonly expert: number;
  /** [expertBytes]: where its weights go, in place; any layout, the same for all copies. */
  readonly bytes: Uint8Array;
}

/** What an ExpertMover begins with. */
export interface ExpertMoverOptions {
  /** In force at first, the same on all ranks; later plans have its layers, experts, ranks and physical experts. */
  readonly plan: ExpertPlan;
  /** Of the weights of one expert of one layer, a multiple of 16. */
  readonly expertBytes: number;
  /** Fills in the weights of an expert of this rank; called once for each slot of each layer. */
  readonly load: (expert: ExpertToLoad) => void | Promise<void>;
}

const optionNames: OptionNames<ExpertMoverOptions> = { plan: true, expertBytes: true, load: true };

/** Fails with WL_INVALID_ARGUMENT. */
export function checkMover(group: RankGroup, device: unknown, options: ExpertMoverOptions): void {
  checkOptions(options, optionNames, 'options of ExpertMover.create');
  const { plan, expertBytes, load } = options;
  if (!(device instanceof CpuDevice)) throw invalidArgument('device', device, 'a CpuDevice');
  requirePlan(plan);
  if (plan.ranks !== group.size)
    throw invalidArgument('plan.ranks', plan.ranks, `${group.size}, the ranks of the group`);
  if (!isWhole(expertBytes, 16) || expertBytes % 16 !== 0) {
    throw invalidArgument('expertBytes', expertBytes, 'a positive multiple of 16');
  }
  if (typeof load !== 'function')
    throw invalidArgument('load', load, 'a function that fills in the weights of an expert');
}
