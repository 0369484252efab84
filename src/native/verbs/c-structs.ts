// The structures of libibverbs' C interface (verbs.h, rdma-core 14 and later, 64 bits), as far as weftline uses them.
import { defineLayout } from '../../abi/layout.ts';

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
  otherFirst: 'u64',
  allocNullMr: 'u64',
  otherSecond: { of: 'u64', count: 36 },
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
  /** In network order. */
  immediate: 'u32',
  /** Of datagrams: the address handle. */
  remoteAddress: 'u64',
  /** Of datagrams: the number of the remote queue pair. */
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
  /** In network order, as the next. */
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
