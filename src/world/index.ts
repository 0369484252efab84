// weftline/world: ranks, the rendezvous store, the launcher.
export { join, type JoinOptions, type World, type WorldView } from './world.ts';
export type { RankGroup, SplitOptions } from './rank-group.ts';
export type { Topology } from './rank-group.ts';
export type { CompareAndSetResult, KeyWaitOptions, Store } from './store.ts';
export type { WaitOptions } from '../core/deadline.ts';
export { isRank } from './environment.ts';
export { launch } from './launcher.ts';
export type { LaunchOptions, LaunchResult } from './job-plan.ts';
export type { NotedError } from './failure-log.ts';
export type { RankFailure } from './first-failure.ts';
export type { OutputLine } from './rank-process.ts';
export type { RankResult } from './rank-process.ts';
