// NCCL, where it is installed: what benchmarks compare with.
import { WeftlineError } from '../core/errors.ts';
import { findCudaLibrary } from './library-search.ts';
import { localFiles } from './file-probe.ts';
import { bindLazily, loadKoffi, type Out, prototype, type StatusCalls } from './library.ts';

export const NCCL_ID_BYTES = 128;

interface UniqueId {
  readonly internal: Uint8Array;
}

type Move = [input: number, output: number, count: number, dtype: number, communicator: number, stream: number];
type Reduce = [
  ...[input: number, output: number, count: number, dtype: number],
  ...[operation: number, communicator: number, stream: number],
];
type Root = [
  ...[input: number, output: number, count: number, dtype: number],
  ...[root: number, communicator: number, stream: number],
];
type RootReduce = [
  ...[input: number, output: number, count: number, dtype: number, operation: number],
  ...[root: number, communicator: number, stream: number],
];
type Message = [address: number, count: number, dtype: number, peer: number, communicator: number, stream: number];

const table = {
  ncclGetVersion: prototype<[version: Out]>('int ncclGetVersion(_Out_ int*)'),
  ncclGetUniqueId: prototype<[id: Uint8Array]>('int ncclGetUniqueId(void*)'),
  ncclCommInitRank: prototype<[communicator: Out, ranks: number, id: UniqueId, rank: number]>(
    'int ncclCommInitRank(_Out_ uint64_t*, int, ncclUniqueId, int)',
  ),
  ncclCommDestroy: prototype<[communicator: number]>('int ncclCommDestroy(uint64_t)'),
  ncclAllReduce: prototype<Reduce>('int ncclAllReduce(uint64_t, uint64_t, size_t, int, int, uint64_t, uint64_t)'),
  ncclReduceScatter: prototype<Reduce>(
    'int ncclReduceScatter(uint64_t, uint64_t, size_t, int, int, uint64_t, uint64_t)',
  ),
  ncclAllGather: prototype<Move>('int ncclAllGather(uint64_t, uint64_t, size_t, int, uint64_t, uint64_t)'),
  ncclBroadcast: prototype<Root>('int ncclBroadcast(uint64_t, uint64_t, size_t, int, int, uint64_t, uint64_t)'),
  ncclReduce: prototype<RootReduce>('int ncclReduce(uint64_t, uint64_t, size_t, int, int, int, uint64_t, uint64_t)'),
  ncclGroupStart: prototype<[]>('int ncclGroupStart()'),
  ncclGroupEnd: prototype<[]>('int ncclGroupEnd()'),
  ncclSend: prototype<Message>('int ncclSend(uint64_t, size_t, int, int, uint64_t, uint64_t)'),
  ncclRecv: prototype<Message>('int ncclRecv(uint64_t, size_t, int, int, uint64_t, uint64_t)'),
};

/** NCCL's functions, which fail with WL_UNSUPPORTED instead of returning a status. */
export type Nccl = StatusCalls<typeof table>;

let opened: Nccl | undefined;

/** Undefined where there is none. */
export function openNccl(): Nccl | undefined {
  if (opened !== undefined) return opened;
  const path = findCudaLibrary(localFiles(), 'nccl');
  if (path === undefined) return undefined;
  loadKoffi().struct('ncclUniqueId', { internal: loadKoffi().array('uint8_t', NCCL_ID_BYTES) });
  const calls = bindLazily(() => path, table);
  opened = new Proxy(calls, {
    get:
      (target, name: keyof Nccl) =>
      (...parameters: unknown[]): number => {
        const status = (target[name] as (...all: unknown[]) => number)(...parameters);
        if (status === 0) return status;
        throw new WeftlineError('WL_UNSUPPORTED', `${name} of ${path} failed with status ${status}`, {
          details: { call: name, status },
        });
      },
  });
  return opened;
}
