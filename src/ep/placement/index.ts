// weftline/ep/placement: copies of busy experts, where they are, and which of them a token goes to.
export { expertPlan, type ExpertPlan } from './expert-plan.ts';
export { ExpertLoads } from './expert-loads.ts';
export { Placement } from './placement.ts';
export { rebalanceExperts, rebalanceExpertsAsync, type RebalanceOptions } from './rebalance.ts';
export { ExpertMover, type ExpertMoverOptions } from './expert-mover.ts';
