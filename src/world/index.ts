// weftline/world: ranks, the rendezvous store, the launcher.
export { join, type JoinOptions, type World } from './world.ts';
export type { CompareAndSetResult, KeyWaitOptions, Store, WaitOptions } from './store.ts';
export { isRank } from './environment.ts';
