// The structures and numbers of UCX's C interface (ucp.h, API 1.12 and later), as far as weftline uses them.
import { defineLayout } from './layout.ts';

// Each structure has room for the fields that weftline leaves out: zero, and not in the field mask.

export const ucpParams = defineLayout('ucp_params_t', {
  fieldMask: 'u64',
  features: 'u64',
  others: { of: 'u64', count: 8 },
});

export const ucpWorkerParams = defineLayout('ucp_worker_params_t', {
  fieldMask: 'u64',
  threadMode: 'u32',
  others: { of: 'u64', count: 19 },
  flags: 'u64',
  more: { of: 'u64', count: 3 },
});

export const ucpEndpointParams = defineLayout('ucp_ep_params_t', {
  fieldMask: 'u64',
  address: 'u64',
  errorMode: 'u32',
  errorCallback: 'u64',
  errorArgument: 'u64',
  others: { of: 'u64', count: 8 },
});

export const ucpRequestParam = defineLayout('ucp_request_param_t', {
  attributes: 'u32',
  flags: 'u32',
  others: { of: 'u64', count: 2 },
  dataType: 'u64',
  more: { of: 'u64', count: 4 },
  /** Of `ucp_mem_map`. Up to 1.12, UCX does not know it. */
  memory: 'u64',
});

export const ucpMemoryParams = defineLayout('ucp_mem_map_params_t', {
  fieldMask: 'u64',
  address: 'u64',
  bytes: 'u64',
  others: { of: 'u64', count: 4 },
});

/** What a receive tells of its message. */
export const ucpTagInfo = defineLayout('ucp_tag_recv_info_t', { tag: 'u64', bytes: 'u64' });

export const ucpMasks = {
  params: { features: 1 },
  features: { tags: 1, remoteMemory: 2, atomics64: 8, wakeup: 16 },
  worker: { flags: 32 },
  /** No warning about requests of a peer that died. */
  workerFlags: { ignoreRequestLeak: 1 },
  endpoint: { address: 1, errorMode: 2, errorHandler: 4 },
  memory: { address: 1, bytes: 2 },
  /** `noImmediate`: a call that ends at once returns a request all the same. */
  request: { dataType: 8, flags: 16, memory: 2 ** 8, noImmediate: 2 ** 16 },
  closeFlags: { force: 1 },
} as const;

/** ucp_atomic_op_t: adds, without the old value. */
export const UCP_ATOMIC_OP_ADD = 0;
/** ucp_dt_make_contig(8): one number of 64 bits. */
export const UCP_WORD_TYPE = 8 << 3;

/** An endpoint tells when its peer is lost, and can be closed at once. */
export const UCP_ERR_HANDLING_MODE_PEER = 1;

/** ucs_status_t, one byte. A pointer status is 0 (done), a request, or one of the negative ones. */
export const ucsStatus = {
  ok: 0,
  inProgress: 1,
  unreachable: -6,
  busy: -15,
  canceled: -16,
  /** Shared memory of the peer, which this process may not open. */
  noSegment: -17,
  last: -100,
} as const;
