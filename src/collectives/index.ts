// weftline/collectives: broadcast, reductions, gathers, all-to-all and messages between the ranks of a group.
export type {
  AllGatherArguments,
  AllReduceArguments,
  AllToAllArguments,
  AllToAllvArguments,
  BroadcastArguments,
  CollectiveOptions,
  CollectiveResult,
  RecvArguments,
  ReduceArguments,
  ReduceScatterArguments,
  SendArguments,
} from './call-arguments.ts';
export type { AlgorithmName, AlgorithmRange, AlgorithmTable } from './algorithm-table.ts';
export type { ReducedDType, Reduction } from './collective-call.ts';
export type { Route } from './collective-call.ts';
export { Communicator } from './communicator.ts';
export type { CommunicatorOptions } from './communicator-options.ts';
export { SparseAllReduce, type SparseAllReduceArguments, type SparseCompletion } from './sparse/sparse-all-reduce.ts';
export type { SparseTraffic } from './sparse/sparse-call.ts';
export type { SparseAllReduceOptions } from './sparse/sparse-options.ts';
export type { OverlapOptions } from '../group/overlap.ts';
