// weftline/collectives: broadcast, reductions, gathers, all-to-all and messages between the ranks of a group.
export type { AllToAllvArguments, CollectiveArguments, CollectiveResult } from './call-arguments.ts';
export type { AlgorithmTable } from './algorithm-table.ts';
export type { Reduction } from './collective-call.ts';
export { Communicator } from './communicator.ts';
export type { CommunicatorOptions } from './communicator-options.ts';
export { SparseAllReduce, type SparseAllReduceArguments } from './sparse/sparse-all-reduce.ts';
export type { SparseTraffic } from './sparse/sparse-call.ts';
export type { SparseAllReduceOptions } from './sparse/sparse-options.ts';
export type { CallOptions } from '../group/overlap.ts';
