// NCCL, where it is installed: what benchmarks compare with.
import { WeftlineError } from '../core/errors.ts';
import { findCudaLibrary, localFiles } from './file-probe.ts';
import { bindLazily, loadKoffi, type StatusCalls } from './library.ts';

export const NCCL_ID_BYTES = 128;

const table = {
  ncclGetVersion: 'int ncclGetVersion(_Out_ int* version)',
  ncclGetUniqueId: 'int ncclGetUniqueId(void* id)',
  ncclCommInitRank: 'int ncclCommInitRank(_Out_ uint64_t* communicator, int ranks, ncclUniqueId id, int rank)',
  ncclCommDestroy: 'int ncclCommDestroy(uint64_t communicator)',
  ncclAllReduce:
    'int ncclAllReduce(uint64_t input, uint64_t output, size_t count, int dtype, int operation, uint64_t communicator, uint64_t stream)',
  ncclReduceScatter:
    'int ncclReduceScatter(uint64_t input, uint64_t output, size_t count, int dtype, int operation, uint64_t communicator, uint64_t stream)',
  ncclAllGather:
    'int ncclAllGather(uint64_t input, uint64_t output, size_t count, int dtype, uint64_t communicator, uint64_t stream)',
  ncclBroadcast:
    'int ncclBroadcast(uint64_t input, uint64_t output, size_t count, int dtype, int root, uint64_t communicator, uint64_t stream)',
  ncclReduce:
    'int ncclReduce(uint64_t input, uint64_t output, size_t count, int dtype, int operation, int root, uint64_t communicator, uint64_t stream)',
  ncclGroupStart: 'int ncclGroupStart()',
  ncclGroupEnd: 'int ncclGroupEnd()',
  ncclSend: 'int ncclSend(uint64_t address, size_t count, int dtype, int peer, uint64_t communicator, uint64_t stream)',
  ncclRecv: 'int ncclRecv(uint64_t address, size_t count, int dtype, int peer, uint64_t communicator, uint64_t stream)',
} as const;

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
