// weftline/world: ranks, the rendezvous store, the launcher.
export { join, type JoinOptions, type World } from './world.ts';
export type { MembershipView as WorldView } from './membership.ts';
export type { RankGroup, Topology } from './rank-group.ts';
export type { Store } from './store.ts';
export type { WaitOptions } from '../core/deadline.ts';
export { isRank } from './environment.ts';
export { launch } from './launcher.ts';
export type { LaunchOptions, LaunchResult } from './job-plan.ts';
export type { RankFailure } from './first-failure.ts';
export type { OutputLine, RankResult } from './rank-process.ts';
