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

/** Which members of ibv_qp_attr a call of ibv_modify_qp means. */
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

/** ibv_port_state by number. */
export const portStates = ['no change', 'down', 'initialized', 'armed', 'active', 'active, deferred'] as const;

/** Physical states by number, of port_attr. */
export const physicalStates = [
  'no change',
  'sleep',
  'polling',
  'disabled',
  'training',
  'link up',
  'error recovery',
  'PHY test',
] as const;

/** ibv_mtu by number, in bytes. */
export const mtuBytes = [0, 256, 512, 1024, 2048, 4096] as const;

/** Lanes of a link, by active_width. */
export const linkLanes: Readonly<Record<number, number>> = { 1: 1, 2: 4, 4: 8, 8: 12, 16: 2 };

/** Gbit/s of each lane as the kernel counts them, and the name of the speed, by active_speed. */
export const laneSpeeds: Readonly<Record<number, readonly [gigabits: number, name: string]>> = {
  1: [2.5, 'SDR'],
  2: [5, 'DDR'],
  4: [10, 'QDR'],
  8: [10, 'FDR10'],
  16: [14, 'FDR'],
  32: [25, 'EDR'],
  64: [50, 'HDR'],
  128: [100, 'NDR'],
};

/** max_vl_num in virtual lanes. */
export const virtualLanes: Readonly<Record<number, string>> = {
  1: 'VL0',
  2: 'VL0-VL1',
  3: 'VL0-VL3',
  4: 'VL0-VL7',
  5: 'VL0-VL14',
};

export const linkLayers = ['unspecified', 'InfiniBand', 'Ethernet'] as const;

export const gidTypes = ['InfiniBand', 'RoCE v1', 'RoCE v2'] as const;

/** ibv_atomic_cap by number. */
export const atomicCapabilities = ['none', 'within the device', 'with all of the host'] as const;
