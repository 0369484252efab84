// libibverbs (libibverbs.so.1) as TypeScript functions: found at run time, opened once per process.
import { WeftlineError } from '../../core/errors.ts';
import { findLibrary, localFiles } from '../file-probe.ts';
import { bindLazily, type NativeFunction, type StatusCalls } from '../library.ts';
import { withErrno } from '../system-call.ts';

/** Handles are numbers: user-space addresses stay below 2^53. These return an object, or -errno. */
const creators = {
  ibv_get_device_list: 'intptr_t ibv_get_device_list(intptr_t count)',
  ibv_open_device: 'intptr_t ibv_open_device(intptr_t device)',
  ibv_alloc_pd: 'intptr_t ibv_alloc_pd(intptr_t context)',
  ibv_reg_mr: 'intptr_t ibv_reg_mr(intptr_t domain, intptr_t address, size_t bytes, int access)',
  /** Takes the optional access flags too; since rdma-core 25. */
  ibv_reg_mr_iova2:
    'intptr_t ibv_reg_mr_iova2(intptr_t domain, intptr_t address, size_t bytes, uint64_t iova, unsigned int access)',
  /** The function exists since rdma-core 34. */
  ibv_reg_dmabuf_mr:
    'intptr_t ibv_reg_dmabuf_mr(intptr_t domain, uint64_t offset, size_t bytes, uint64_t iova, int descriptor, int access)',
  ibv_create_comp_channel: 'intptr_t ibv_create_comp_channel(intptr_t context)',
  ibv_create_cq:
    'intptr_t ibv_create_cq(intptr_t context, int entries, intptr_t userData, intptr_t channel, int vector)',
  ibv_create_qp: 'intptr_t ibv_create_qp(intptr_t domain, intptr_t attributes)',
  ibv_create_srq: 'intptr_t ibv_create_srq(intptr_t domain, intptr_t attributes)',
  ibv_create_ah: 'intptr_t ibv_create_ah(intptr_t domain, intptr_t attributes)',
} as const;

/** These return 0 or -errno. */
const queries = {
  ibv_get_cq_event: 'int ibv_get_cq_event(intptr_t channel, intptr_t queue, intptr_t userData)',
  ibv_get_async_event: 'int ibv_get_async_event(intptr_t context, intptr_t event)',
  ibv_close_device: 'int ibv_close_device(intptr_t context)',
} as const;

/** These return 0 or an errno, or what their comment says. */
const actions = {
  /** Sets errno where it is not 0. */
  ibv_fork_init: 'int ibv_fork_init()',
  ibv_free_device_list: 'void ibv_free_device_list(intptr_t list)',
  ibv_query_device: 'int ibv_query_device(intptr_t context, intptr_t attributes)',
  ibv_query_port: 'int ibv_query_port(intptr_t context, uint8_t port, intptr_t attributes)',
  /** The number of entries, or a negative errno; since rdma-core 32. */
  ibv_query_gid_table:
    'int64_t _ibv_query_gid_table(intptr_t context, intptr_t entries, size_t max, uint32_t flags, size_t entryBytes)',
  ibv_dealloc_pd: 'int ibv_dealloc_pd(intptr_t domain)',
  ibv_dereg_mr: 'int ibv_dereg_mr(intptr_t region)',
  ibv_destroy_comp_channel: 'int ibv_destroy_comp_channel(intptr_t channel)',
  ibv_ack_cq_events: 'void ibv_ack_cq_events(intptr_t queue, unsigned int count)',
  ibv_destroy_cq: 'int ibv_destroy_cq(intptr_t queue)',
  ibv_modify_qp: 'int ibv_modify_qp(intptr_t queuePair, intptr_t attributes, int mask)',
  ibv_query_qp: 'int ibv_query_qp(intptr_t queuePair, intptr_t attributes, int mask, intptr_t initAttributes)',
  ibv_destroy_qp: 'int ibv_destroy_qp(intptr_t queuePair)',
  ibv_destroy_srq: 'int ibv_destroy_srq(intptr_t queue)',
  ibv_destroy_ah: 'int ibv_destroy_ah(intptr_t handle)',
  ibv_ack_async_event: 'void ibv_ack_async_event(intptr_t event)',
} as const;

export type VerbsCalls = StatusCalls<typeof creators & typeof queries & typeof actions>;

interface Verbs {
  readonly path: string;
  readonly calls: VerbsCalls;
}

const fileName = /^libibverbs\.so\.1$/;
let opened: Verbs | undefined;

/** Opens the library. Fails with WL_UNSUPPORTED when there is none. */
export function openVerbs(): Verbs {
  opened ??= open();
  return opened;
}

function open(): Verbs {
  const path = findLibrary(localFiles(), fileName);
  if (path === undefined) {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      'libibverbs.so.1 was not found: install it (Debian and Ubuntu: "apt-get install libibverbs1 ibverbs-providers"), or add its folder to LD_LIBRARY_PATH',
    );
  }
  const calls = bindLazily(() => path, { ...creators, ...queries, ...actions }, withStatus);
  // Kernels before 5.12 give pinned pages of a process that forks to its child. They are then kept from the child
  // altogether; Node's children need none of them.
  calls.ibv_fork_init();
  return { path, calls };
}

function withStatus(call: NativeFunction, name: string): NativeFunction {
  if (Object.hasOwn(creators, name)) return withErrno(call, 0);
  return Object.hasOwn(queries, name) ? withErrno(call, -1) : call;
}
