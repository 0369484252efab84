// libibverbs (libibverbs.so.1) as TypeScript functions: found at run time, opened once per process.
import { wideAt } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import { localFiles } from '../file-probe.ts';
import { findLibrary } from '../library-search.ts';
import { bindLazily, NativeBlock, type NativeFunction, prototype, type StatusCalls } from '../library.ts';
import { withErrno } from '../system-call.ts';

// Taking the events of a completion channel, by whichever thread of the process sleeps on its descriptor.

export class ChannelEvents {
  readonly #channel: number;
  readonly #event = new NativeBlock(16);
  readonly #calls = openVerbs().calls;

  /** `channel`: native address of one whose descriptor does not block. */
  constructor(channel: number) {
    this.#channel = channel;
  }

  /** Takes all events, so that the descriptor is not readable any more. Returns how many there were. Does not wait. */
  take(): number {
    const { ibv_get_cq_event: take, ibv_ack_cq_events: acknowledge } = this.#calls;
    const { address, words } = this.#event;
    let count = 0;
    while (take(this.#channel, address, address + 8) === 0) {
      // A queue cannot be closed before each of its events was acknowledged.
      acknowledge(wideAt(words, 0), 1);
      count += 1;
    }
    return count;
  }
}

/** Handles are numbers: user-space addresses stay below 2^53. These return an object, or -errno. */
const creators = {
  ibv_get_device_list: prototype<[count: number]>('intptr_t ibv_get_device_list(intptr_t)'),
  ibv_open_device: prototype<[device: number]>('intptr_t ibv_open_device(intptr_t)'),
  ibv_alloc_pd: prototype<[context: number]>('intptr_t ibv_alloc_pd(intptr_t)'),
  ibv_reg_mr: prototype<[domain: number, address: number, bytes: number, access: number]>(
    'intptr_t ibv_reg_mr(intptr_t, intptr_t, size_t, int)',
  ),
  /** Takes the optional access flags too; since rdma-core 25. */
  ibv_reg_mr_iova2: prototype<[domain: number, address: number, bytes: number, iova: number, access: number]>(
    'intptr_t ibv_reg_mr_iova2(intptr_t, intptr_t, size_t, uint64_t, unsigned int)',
  ),
  /** Since rdma-core 34. */
  ibv_reg_dmabuf_mr: prototype<
    [domain: number, offset: number, bytes: number, iova: number, descriptor: number, access: number]
  >('intptr_t ibv_reg_dmabuf_mr(intptr_t, uint64_t, size_t, uint64_t, int, int)'),
  ibv_create_comp_channel: prototype<[context: number]>('intptr_t ibv_create_comp_channel(intptr_t)'),
  ibv_create_cq: prototype<[context: number, entries: number, userData: number, channel: number, vector: number]>(
    'intptr_t ibv_create_cq(intptr_t, int, intptr_t, intptr_t, int)',
  ),
  ibv_create_qp: prototype<[domain: number, attributes: number]>('intptr_t ibv_create_qp(intptr_t, intptr_t)'),
  ibv_create_srq: prototype<[domain: number, attributes: number]>('intptr_t ibv_create_srq(intptr_t, intptr_t)'),
  ibv_create_ah: prototype<[domain: number, attributes: number]>('intptr_t ibv_create_ah(intptr_t, intptr_t)'),
};

/** These return 0 or -errno. */
const queries = {
  ibv_get_cq_event: prototype<[channel: number, queue: number, userData: number]>(
    'int ibv_get_cq_event(intptr_t, intptr_t, intptr_t)',
  ),
  ibv_get_async_event: prototype<[context: number, event: number]>('int ibv_get_async_event(intptr_t, intptr_t)'),
  ibv_close_device: prototype<[context: number]>('int ibv_close_device(intptr_t)'),
};

/** These return 0 or an errno, or what their comment says. */
const actions = {
  /** Sets errno where it is not 0. */
  ibv_fork_init: prototype<[]>('int ibv_fork_init()'),
  ibv_free_device_list: prototype<[list: number]>('void ibv_free_device_list(intptr_t)'),
  ibv_query_device: prototype<[context: number, attributes: number]>('int ibv_query_device(intptr_t, intptr_t)'),
  ibv_query_port: prototype<[context: number, port: number, attributes: number]>(
    'int ibv_query_port(intptr_t, uint8_t, intptr_t)',
  ),
  /** The number of entries, or a negative errno; since rdma-core 32. */
  ibv_query_gid_table: prototype<[context: number, entries: number, max: number, flags: number, entryBytes: number]>(
    'int64_t _ibv_query_gid_table(intptr_t, intptr_t, size_t, uint32_t, size_t)',
  ),
  ibv_dealloc_pd: prototype<[domain: number]>('int ibv_dealloc_pd(intptr_t)'),
  ibv_dereg_mr: prototype<[region: number]>('int ibv_dereg_mr(intptr_t)'),
  ibv_destroy_comp_channel: prototype<[channel: number]>('int ibv_destroy_comp_channel(intptr_t)'),
  ibv_ack_cq_events: prototype<[queue: number, count: number]>('void ibv_ack_cq_events(intptr_t, unsigned int)'),
  ibv_destroy_cq: prototype<[queue: number]>('int ibv_destroy_cq(intptr_t)'),
  ibv_modify_qp: prototype<[queuePair: number, attributes: number, mask: number]>(
    'int ibv_modify_qp(intptr_t, intptr_t, int)',
  ),
  ibv_query_qp: prototype<[queuePair: number, attributes: number, mask: number, initAttributes: number]>(
    'int ibv_query_qp(intptr_t, intptr_t, int, intptr_t)',
  ),
  ibv_destroy_qp: prototype<[queuePair: number]>('int ibv_destroy_qp(intptr_t)'),
  ibv_destroy_srq: prototype<[queue: number]>('int ibv_destroy_srq(intptr_t)'),
  ibv_destroy_ah: prototype<[handle: number]>('int ibv_destroy_ah(intptr_t)'),
  ibv_ack_async_event: prototype<[event: number]>('void ibv_ack_async_event(intptr_t)'),
};

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
