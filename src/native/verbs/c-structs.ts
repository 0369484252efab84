// The structures of libibverbs' C interface (verbs.h, rdma-core 14 and later, 64 bits), as far as weftline uses them.
import { defineLayout } from '../../abi/layout.ts';

// The numbers of libibverbs' C interface, and what they mean in words.

export const qpType = { rc: 2, uc: 3, ud: 4 } as const;

export const qpState = {
  reset: 0,
  init: 1,
  readyToReceive: 2,
  readyToSend: 3,
  drained: 4,
  sendError: 5,
  error: 6,
} as const;

/** Bits for the members of ibv_qp_attr that a call of ibv_modify_qp means. */
export const qpMask = {
  state: 1,
  access: 1 << 3,
  pkeyIndex: 1 << 4,
  port: 1 << 5,
  queueKey: 1 << 6,
  path: 1 << 7,
  pathMtu: 1 << 8,
  timeout: 1 << 9,
  retries: 1 << 10,
  receiverNotReadyRetries: 1 << 11,
  receiveSequence: 1 << 12,
  maxReads: 1 << 13,
  minReceiverNotReadyTimer: 1 << 15,
  sendSequence: 1 << 16,
  maxRemoteReads: 1 << 17,
  remoteQueuePair: 1 << 20,
} as const;

/** Kinds of send requests. */
export const sendOpcode = {
  write: 0,
  writeWithImmediate: 1,
  send: 2,
  sendWithImmediate: 3,
  read: 4,
  fetchAdd: 6,
} as const;

/** `inline`: the data is taken from memory by the post itself, and may be overwritten after it. */
export const sendFlag = { fence: 1, signaled: 2, solicited: 4, inline: 8 } as const;

/** Kinds of completions. */
export const completionOpcode = {
  send: 0,
  write: 1,
  read: 2,
  fetchAdd: 4,
  receive: 128,
  receiveWriteWithImmediate: 129,
} as const;

export const completionFlag = { routingHeader: 1, immediate: 2 } as const;

/** Bytes in front of every received datagram: the global routing header. */
export const ROUTING_HEADER_BYTES = 40;

export const accessFlag = {
  localWrite: 1,
  remoteWrite: 2,
  remoteRead: 4,
  remoteAtomic: 8,
  relaxedOrdering: 1 << 20,
} as const;

/** ibv_wc_status by number. */
export const completionStatuses = [
  ['IBV_WC_SUCCESS', 'success'],
  ['IBV_WC_LOC_LEN_ERR', 'the message is longer than the buffers of its request, or than the port carries'],
  ['IBV_WC_LOC_QP_OP_ERR', 'the queue pair found its own state or request inconsistent'],
  ['IBV_WC_LOC_EEC_OP_ERR', 'the end-to-end context found its own state inconsistent'],
  ['IBV_WC_LOC_PROT_ERR', 'a buffer of the request is not in memory that its local key allows'],
  ['IBV_WC_WR_FLUSH_ERR', 'the queue pair had failed or was closed before the request was done'],
  ['IBV_WC_MW_BIND_ERR', 'a memory window could not be bound'],
  ['IBV_WC_BAD_RESP_ERR', 'the peer answered with a packet that does not fit the request'],
  ['IBV_WC_LOC_ACCESS_ERR', 'the local memory does not allow what the peer wrote'],
  [
    'IBV_WC_REM_INV_REQ_ERR',
    'the peer refused the request as invalid: a message longer than its buffer, or an operation that it does not allow',
  ],
  [
    'IBV_WC_REM_ACCESS_ERR',
    'the peer refused access: wrong remote key, outside of the region, or an operation that the region does not allow',
  ],
  ['IBV_WC_REM_OP_ERR', 'the peer could not complete the operation'],
  [
    'IBV_WC_RETRY_EXC_ERR',
    'the peer did not acknowledge, although the request was sent again: it is gone or unreachable',
  ],
  ['IBV_WC_RNR_RETRY_EXC_ERR', 'the peer had no receive posted for too long'],
  ['IBV_WC_LOC_RDD_VIOL_ERR', 'the reliable datagram domains differ'],
  ['IBV_WC_REM_INV_RD_REQ_ERR', 'the peer refused the reliable datagram'],
  ['IBV_WC_REM_ABORT_ERR', 'the peer aborted the operation'],
  ['IBV_WC_INV_EECN_ERR', 'the number of the end-to-end context is invalid'],
  ['IBV_WC_INV_EEC_STATE_ERR', 'the end-to-end context is in a wrong state'],
  ['IBV_WC_FATAL_ERR', 'the device failed fatally'],
  ['IBV_WC_RESP_TIMEOUT_ERR', 'the answer did not come in time'],
  ['IBV_WC_GENERAL_ERR', 'the transport failed for a reason that it does not tell'],
  ['IBV_WC_TM_ERR', 'tag matching failed'],
  ['IBV_WC_TM_RNDV_INCOMPLETE', 'the rendezvous of tag matching was left to software'],
] as const;

/** Statuses that weftline looks for. */
export const completionStatus = { success: 0, flushed: 5, remoteAccess: 10, retriesExceeded: 12 } as const;

/** ibv_event_type by number: name, meaning, and what `element` of the event is. */
export const asyncEvents = [
  ['IBV_EVENT_CQ_ERR', 'a completion queue overran', 'cq'],
  ['IBV_EVENT_QP_FATAL', 'a queue pair failed', 'qp'],
  ['IBV_EVENT_QP_REQ_ERR', 'a queue pair got an invalid request', 'qp'],
  ['IBV_EVENT_QP_ACCESS_ERR', 'a queue pair got a request that its memory does not allow', 'qp'],
  ['IBV_EVENT_COMM_EST', 'a queue pair got its first message', 'qp'],
  ['IBV_EVENT_SQ_DRAINED', 'the send queue of a queue pair was drained', 'qp'],
  ['IBV_EVENT_PATH_MIG', 'a connection moved to its other path', 'qp'],
  ['IBV_EVENT_PATH_MIG_ERR', 'a connection could not move to its other path', 'qp'],
  ['IBV_EVENT_DEVICE_FATAL', 'the device failed or was removed', 'device'],
  ['IBV_EVENT_PORT_ACTIVE', 'a port came up', 'port'],
  ['IBV_EVENT_PORT_ERR', 'a port went down', 'port'],
  ['IBV_EVENT_LID_CHANGE', 'the address (LID) of a port changed', 'port'],
  ['IBV_EVENT_PKEY_CHANGE', 'the partitions of a port changed', 'port'],
  ['IBV_EVENT_SM_CHANGE', 'the subnet manager of a port changed', 'port'],
  ['IBV_EVENT_SRQ_ERR', 'a shared receive queue failed', 'srq'],
  ['IBV_EVENT_SRQ_LIMIT_REACHED', 'a shared receive queue runs low', 'srq'],
  ['IBV_EVENT_QP_LAST_WQE_REACHED', 'a failed queue pair has taken its last request of a shared receive queue', 'qp'],
  ['IBV_EVENT_CLIENT_REREGISTER', 'the subnet manager asks for registration', 'port'],
  ['IBV_EVENT_GID_CHANGE', 'the addresses (GIDs) of a port changed', 'port'],
  ['IBV_EVENT_WQ_FATAL', 'a work queue failed', 'wq'],
] as const;

/** ibv_mtu by number, in bytes. */
export const mtuBytes = [0, 256, 512, 1024, 2048, 4096] as const;

// Fields named "other…" are those that weftline leaves alone. Whole objects end where weftline stops reading them.

/** struct ibv_device: name is that of the kernel's device, such as mlx5_0. */
export const ibvDevice = defineLayout('ibv_device', {
  otherOperations: { of: 'u64', count: 2 },
  nodeType: 'i32',
  transport: 'i32',
  name: { of: 'u8', count: 64 },
});

/** struct ibv_context. The operations of hot paths are function pointers here, not symbols of the library. */
export const ibvContext = defineLayout('ibv_context', {
  device: 'u64',
  otherFirst: { of: 'u64', count: 11 },
  pollCq: 'u64',
  requestNotifyCq: 'u64',
  otherSecond: { of: 'u64', count: 7 },
  postSrqReceive: 'u64',
  otherThird: { of: 'u64', count: 4 },
  postSend: 'u64',
  postReceive: 'u64',
  otherFourth: { of: 'u64', count: 5 },
  commandDescriptor: 'i32',
  asyncDescriptor: 'i32',
  completionVectors: 'i32',
  otherFifth: { of: 'u64', count: 5 },
  /** All ones in each context of today's interface: a `verbs_context` then lies in front of it. */
  abiCompatibility: { of: 'u32', count: 2 },
});

/** struct verbs_context, up to the `ibv_context` that is its last member. */
export const verbsContext = defineLayout('verbs_context', {
  queryPort: 'u64',
  other: { of: 'u64', count: 38 },
  /** Bytes of the whole; members that would begin beyond do not exist. */
  bytes: 'u64',
});

export const ibvPd = defineLayout('ibv_pd', { context: 'u64', handle: 'u32' });

export const ibvMr = defineLayout('ibv_mr', {
  context: 'u64',
  domain: 'u64',
  address: 'u64',
  bytes: 'u64',
  handle: 'u32',
  localKey: 'u32',
  remoteKey: 'u32',
});

export const ibvCompletionChannel = defineLayout('ibv_comp_channel', { context: 'u64', descriptor: 'i32' });

export const ibvCq = defineLayout('ibv_cq', {
  context: 'u64',
  channel: 'u64',
  userData: 'u64',
  handle: 'u32',
  entries: 'i32',
});

export const ibvQp = defineLayout('ibv_qp', {
  context: 'u64',
  userData: 'u64',
  domain: 'u64',
  sendCq: 'u64',
  receiveCq: 'u64',
  srq: 'u64',
  handle: 'u32',
  number: 'u32',
  state: 'u32',
  type: 'u32',
});

export const ibvSge = defineLayout('ibv_sge', { address: 'u64', bytes: 'u32', localKey: 'u32' });

/** struct ibv_send_wr. `remoteKey` and `queueKey` are the low and the high word of the addend of an atomic. */
export const ibvSendWr = defineLayout('ibv_send_wr', {
  /** wr_id, which its completion repeats: two words of the caller's. */
  sequence: 'u32',
  tag: 'u32',
  next: 'u64',
  sgeList: 'u64',
  sgeCount: 'u32',
  opcode: 'u32',
  flags: 'u32',
  /** Value in network order. */
  immediate: 'u32',
  /** Address handle, for datagrams. */
  remoteAddress: 'u64',
  /** Number of the remote queue pair, for datagrams. */
  remoteKey: 'u32',
  queueKey: 'u32',
  swap: 'u64',
  atomicKey: 'u32',
  other: { of: 'u64', count: 7 },
});

export const ibvReceiveWr = defineLayout('ibv_recv_wr', {
  sequence: 'u32',
  tag: 'u32',
  next: 'u64',
  sgeList: 'u64',
  sgeCount: 'u32',
});

export const ibvWc = defineLayout('ibv_wc', {
  sequence: 'u32',
  tag: 'u32',
  status: 'u32',
  opcode: 'u32',
  vendorError: 'u32',
  bytes: 'u32',
  immediate: 'u32',
  queuePair: 'u32',
  sourceQueuePair: 'u32',
  flags: 'u32',
  pkeyIndex: 'u16',
  sourceLid: 'u16',
  serviceLevel: 'u8',
  pathBits: 'u8',
});

export const ibvQpInitAttributes = defineLayout('ibv_qp_init_attr', {
  userData: 'u64',
  sendCq: 'u64',
  receiveCq: 'u64',
  srq: 'u64',
  maxSends: 'u32',
  maxReceives: 'u32',
  maxSendSges: 'u32',
  maxReceiveSges: 'u32',
  maxInlineBytes: 'u32',
  type: 'u32',
  signalAll: 'i32',
});

/** struct ibv_qp_attr, with the members of its ah_attr in place. */
export const ibvQpAttributes = defineLayout('ibv_qp_attr', {
  state: 'u32',
  currentState: 'u32',
  pathMtu: 'u32',
  migration: 'u32',
  queueKey: 'u32',
  receiveSequence: 'u32',
  sendSequence: 'u32',
  remoteQueuePair: 'u32',
  access: 'u32',
  otherCapacity: { of: 'u32', count: 5 },
  remoteGid: { of: 'u8', count: 16 },
  flowLabel: 'u32',
  gidIndex: 'u8',
  hopLimit: 'u8',
  trafficClass: 'u8',
  remoteLid: 'u16',
  serviceLevel: 'u8',
  pathBits: 'u8',
  staticRate: 'u8',
  isGlobal: 'u8',
  pathPort: 'u8',
  otherPath: { of: 'u64', count: 4 },
  pkeyIndex: 'u16',
  otherPkeyIndex: 'u16',
  drainedEvent: 'u8',
  draining: 'u8',
  maxReads: 'u8',
  maxRemoteReads: 'u8',
  minReceiverNotReadyTimer: 'u8',
  port: 'u8',
  timeout: 'u8',
  retries: 'u8',
  receiverNotReadyRetries: 'u8',
  otherPort: 'u8',
  otherTimeout: 'u8',
  rateLimit: 'u32',
});

/** struct ibv_ah_attr. */
export const ibvAhAttributes = defineLayout('ibv_ah_attr', {
  remoteGid: { of: 'u8', count: 16 },
  flowLabel: 'u32',
  gidIndex: 'u8',
  hopLimit: 'u8',
  trafficClass: 'u8',
  remoteLid: 'u16',
  serviceLevel: 'u8',
  pathBits: 'u8',
  staticRate: 'u8',
  isGlobal: 'u8',
  pathPort: 'u8',
});

export const ibvSrqInitAttributes = defineLayout('ibv_srq_init_attr', {
  userData: 'u64',
  maxReceives: 'u32',
  maxSges: 'u32',
  limit: 'u32',
});

/** struct ibv_async_event: the object that it is about, or the number of a port. */
export const ibvAsyncEvent = defineLayout('ibv_async_event', { element: 'u64', type: 'u32' });

export const ibvGidEntry = defineLayout('ibv_gid_entry', {
  gid: { of: 'u8', count: 16 },
  index: 'u32',
  port: 'u32',
  type: 'u32',
  interfaceIndex: 'u32',
});

/** struct ibv_device_attr. */
export const ibvDeviceAttributes = defineLayout('ibv_device_attr', {
  firmware: { of: 'u8', count: 64 },
  /** Identifiers in network order. */
  nodeGuid: { of: 'u8', count: 8 },
  systemImageGuid: { of: 'u8', count: 8 },
  maxMrSize: 'u64',
  pageSizes: 'u64',
  vendorId: 'u32',
  vendorPartId: 'u32',
  hardwareVersion: 'u32',
  maxQp: 'i32',
  maxQpWr: 'i32',
  capabilities: 'u32',
  maxSge: 'i32',
  maxSgeRead: 'i32',
  maxCq: 'i32',
  maxCqe: 'i32',
  maxMr: 'i32',
  maxPd: 'i32',
  maxQpReads: 'i32',
  maxEeReads: 'i32',
  maxDeviceReads: 'i32',
  maxQpInitiatedReads: 'i32',
  maxEeInitiatedReads: 'i32',
  atomics: 'u32',
  otherLimits: { of: 'i32', count: 8 },
  maxAh: 'i32',
  otherMaps: { of: 'i32', count: 2 },
  maxSrq: 'i32',
  maxSrqWr: 'i32',
  maxSrqSge: 'i32',
  maxPkeys: 'u16',
  ackDelay: 'u8',
  ports: 'u8',
});

/** struct ibv_port_attr. */
export const ibvPortAttributes = defineLayout(
  'ibv_port_attr',
  {
    state: 'u32',
    maxMtu: 'u32',
    activeMtu: 'u32',
    gids: 'i32',
    capabilities: 'u32',
    maxMessageBytes: 'u32',
    badPkeys: 'u32',
    badQueueKeys: 'u32',
    pkeys: 'u16',
    lid: 'u16',
    subnetManagerLid: 'u16',
    lidMask: 'u8',
    virtualLanes: 'u8',
    subnetManagerLevel: 'u8',
    subnetTimeout: 'u8',
    initType: 'u8',
    activeWidth: 'u8',
    activeSpeed: 'u8',
    physicalState: 'u8',
    linkLayer: 'u8',
    flags: 'u8',
    moreCapabilities: 'u16',
  },
  4,
);
