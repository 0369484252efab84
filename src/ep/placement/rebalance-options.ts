// What rebalanceExperts() takes, and the checks of it.
import { checkOptions, isWhole, type OptionNames } from '../../core/check-options.ts';
import { invalidArgument } from '../../core/errors.ts';

const policies = ['hierarchical', 'global'] as const;

/** Whether the experts of a group stay on one node, or any expert may be anywhere. */
export type PlacementPolicy = (typeof policies)[number];

/** How many copies there are to place, and on what. */
export interface RebalanceOptions {
  /** Physical experts of a layer in all: each expert once, and the copies of busy ones. A multiple of `ranks`. */
  readonly replicas: number;
  /** Ranks over which the physical experts are divided evenly; a multiple of `nodes`. */
  readonly ranks: number;
  /** Nodes, of which each has as many ranks, in order; 1 by default. */
  readonly nodes?: number;
  /** Groups of experts, contiguous and of one size, from which the router chooses first; 1 by default. */
  readonly groups?: number;
  /**
   * 'hierarchical': each node gets whole groups, so that a token that chooses from few groups goes to few nodes; `groups`
   * must be a multiple of `nodes`, and divide the experts. 'global': regardless of groups and nodes. By default the first
   * where `groups` is a multiple of `nodes`.
   */
  readonly policy?: PlacementPolicy;
}

/** Options with the policy decided: 'global' is the hierarchy of one node that has one group. */
export interface RebalanceShape {
  readonly layers: number;
  readonly experts: number;
  readonly replicas: number;
  readonly ranks: number;
  readonly nodes: number;
  readonly groups: number;
}

const optionNames: OptionNames<RebalanceOptions> = {
  replicas: true,
  ranks: true,
  nodes: true,
  groups: true,
  policy: true,
};

/** Far more than models have, and little enough for the memory of tables by physical expert. */
const MAX_REPLICAS = 2 ** 16;

/** Fails with WL_INVALID_ARGUMENT, naming the option, or the layer and expert. */
export function checkRebalance(weights: readonly ArrayLike<number>[], options: RebalanceOptions): RebalanceShape {
  checkOptions(options, optionNames, 'options of rebalanceExperts');
  const { layers, experts } = checkWeights(weights);
  const { replicas, ranks, nodes = 1, groups = 1 } = options;
  for (const [name, value] of Object.entries({ replicas, ranks, nodes, groups })) {
    if (!isWhole(value, 1) || value > MAX_REPLICAS)
      throw invalidArgument(name, value, `a whole number from 1 to ${MAX_REPLICAS}`);
  }
  if (ranks % nodes !== 0) throw invalidArgument('ranks', ranks, `a multiple of the ${nodes} nodes`);
  if (replicas < experts || replicas % ranks !== 0) {
    throw invalidArgument('replicas', replicas, `a multiple of the ${ranks} ranks, at least the ${experts} experts`);
  }
  const { policy = groups % nodes === 0 ? 'hierarchical' : 'global' } = options;
  if (!policies.includes(policy)) throw invalidArgument('policy', policy, policies.join(' or '));
  const shape = { layers, experts, replicas, ranks };
  if (policy === 'global') return { ...shape, nodes: 1, groups: 1 };
  if (groups % nodes !== 0) {
    throw invalidArgument('groups', groups, `a multiple of the ${nodes} nodes with policy hierarchical`);
  }
  if (experts % groups !== 0) throw invalidArgument('groups', groups, `a divisor of the ${experts} experts`);
  return { ...shape, nodes, groups };
}

function checkWeights(weights: readonly ArrayLike<number>[]): { readonly layers: number; readonly experts: number } {
  const experts = Array.isArray(weights) ? weights[0]?.length : undefined;
  if (!isWhole(experts, 1)) {
    throw invalidArgument('weights', weights, 'an array with, for each layer, an array with the load of each expert');
  }
  for (const [layer, row] of weights.entries()) {
    if (row?.length !== experts) throw invalidArgument(`weights[${layer}]`, row, `the loads of ${experts} experts`);
    for (let expert = 0; expert < experts; expert++) {
      const load = row[expert];
      if (typeof load === 'number' && Number.isFinite(load) && load >= 0) continue;
      throw invalidArgument(`weights[${layer}][${expert}]`, load, 'a finite number of at least 0');
    }
  }
  return { layers: weights.length, experts };
}
