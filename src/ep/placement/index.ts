// weftline/ep/placement: copies of busy experts, where they are, and which of them a token goes to.
export {
  contiguousPlan,
  expertPlan,
  type ExpertPlan,
  type ExpertPlanOptions,
  type ExpertPlanShape,
} from './expert-plan.ts';
export { ExpertLoads, type ExpertLoadsOptions } from './expert-loads.ts';
export { type ExpertIds, Placement, type PlacementRank, type RouteOptions } from './placement.ts';
export { rebalanceExperts } from './rebalance.ts';
export { rebalanceExpertsAsync } from './rebalance.ts';
export type { PlacementPolicy, RebalanceOptions } from './rebalance.ts';
export { ExpertMover } from './expert-mover.ts';
export type { ExpertMoverOptions, ExpertToLoad } from './expert-mover.ts';
