// Every knob of weftline, once: name, environment variable, flag, unit, range, default and what it does.
import { congestionNames, congestionSummary } from '../congestion/congestion.ts';
import { checkOptions } from '../core/check-options.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { setLogLevels } from '../core/log.ts';
import { quote } from '../core/quote.ts';

/** Settings of devices, ports, addresses and queue pairs. */
export const rdmaSettingsTable = {
  rdmaDevices: {
    kind: 'text',
    env: 'WEFTLINE_RDMA_DEVICES',
    flag: '--rdma-devices <list>',
    default: '',
    sentence:
      'RDMA devices that may be used: names or prefixes of names, separated by commas, such as mlx5_0,mlx5_2:1, where :1 stands for port 1 alone. "=" before a name matches it exactly (=mlx5_1); "^" before the list excludes the devices in it (^mlx5_0). If empty, all devices. The transport uses every port of a list at once (path by path, paired with those of the peer by index, fastest first), and the best one alone if it is empty; agents use the best one. "weftline doctor --rdma" shows the choice; for the backend ucx, UCX_NET_DEVICES wins.',
  },
  rdmaPort: {
    kind: 'number',
    env: 'WEFTLINE_RDMA_PORT',
    flag: '--rdma-port <port>',
    unit: 'ports',
    min: 0,
    max: 255,
    default: 0,
    sentence: 'Number of the only port to use of each RDMA device; 0: every active port.',
  },
  rdmaGidIndex: {
    kind: 'text',
    env: 'WEFTLINE_RDMA_GID_INDEX',
    flag: '--rdma-gid-index <index>',
    default: '',
    pattern: { of: /^\s*\d{1,5}\s*$/, expected: 'a whole number, the index of a GID' },
    sentence:
      'Index of the GID (address) at which peers reach a port; "weftline doctor --rdma" lists them. If empty, weftline chooses: over Ethernet a GID of RoCE v2, of IPv4 before IPv6; over InfiniBand the first.',
  },
  rdmaService: {
    kind: 'choice',
    env: 'WEFTLINE_RDMA_SERVICE',
    flag: '--rdma-service <service>',
    choices: ['rc', 'uc', 'ud'],
    default: 'rc',
    sentence:
      'Kind of the queue pairs that carry data: rc (reliable connection, the device retransmits), uc (unreliable connection) or ud (unreliable datagram); with uc and ud weftline retransmits. The backend verbs of agents always takes rc.',
  },
  rdmaTrafficClass: {
    kind: 'number',
    env: 'WEFTLINE_RDMA_TRAFFIC_CLASS',
    flag: '--rdma-traffic-class <class>',
    unit: 'classes',
    min: 0,
    max: 255,
    default: 0,
    sentence:
      'Traffic class of RDMA packets. Over Ethernet it is the byte of the IP header that holds DSCP and ECN: 4 times the DSCP.',
  },
  rdmaRelaxedOrdering: {
    kind: 'boolean',
    env: 'WEFTLINE_RDMA_RELAXED_ORDERING',
    flag: '--rdma-relaxed-ordering',
    default: false,
    sentence:
      'Allow relaxed ordering on PCI: writes of an RDMA device to registered memory may overtake each other, if the device supports it. Faster on some hosts. Memory of agents never has it, because receivers of signals look at memory.',
  },
  rdmaGpuMemory: {
    kind: 'choice',
    env: 'WEFTLINE_RDMA_GPU_MEMORY',
    flag: '--rdma-gpu-memory <way>',
    choices: ['auto', 'dmabuf', 'peermem', 'pinned'],
    default: 'auto',
    sentence:
      'How the backend verbs reaches memory of GPUs: dmabuf or peermem (GPUDirect RDMA), the RDMA device reads and writes it itself; pinned, it travels through pinned memory of the host; auto, the first of them that GPU, driver, kernel and RDMA device offer. A way that is named is taken without a look at what they offer, and fails where it is not there.',
  },
  rdmaControlInterface: {
    kind: 'text',
    env: 'WEFTLINE_RDMA_CONTROL_INTERFACE',
    flag: '--rdma-control-interface <name>',
    default: '',
    sentence:
      'Network interface over which RDMA peers meet (TCP), whichever devices carry the data. If empty, the interface of the address at which a peer is called.',
  },
} as const satisfies Record<string, Setting>;

/** Settings of sockets and threads. */
const hostSettings = {
  transportIo: {
    kind: 'choice',
    env: 'WEFTLINE_TRANSPORT_IO',
    flag: '--io <kind>',
    choices: ['udp', 'verbs'],
    default: 'udp',
    sentence:
      'What carries the packets of the transport: udp, sockets; verbs, queue pairs of an RDMA device, which WEFTLINE_RDMA_SERVICE says the kind of and WEFTLINE_RDMA_DEVICES may name. Both sides of a connection must use the same.',
  },
  transportEngines: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_ENGINES',
    flag: '--engines <count>',
    unit: 'engines',
    min: 0,
    max: 16,
    default: 0,
    sentence:
      'Engine threads of a transport, each with sockets of its own; a connection uses as many as the side with fewer has. 0: one per 8 cores that a rank has, at most 4.',
  },
  transportSpread: {
    kind: 'choice',
    env: 'WEFTLINE_TRANSPORT_SPREAD',
    flag: '--spread <how>',
    choices: ['turn', 'split', 'flow'],
    default: 'turn',
    sentence:
      'How several engines share what is large: whole messages and reads in turn, each split over all, or each flow on an engine of its own; turn if the two sides of a connection differ. Writes of a flow stay on one engine.',
  },
  transportPaths: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_PATHS',
    flag: '--paths <count>',
    unit: 'paths',
    min: 1,
    max: 256,
    default: 4,
    sentence:
      'UDP sockets (paths) of an engine for each connection, over which packets are spread, each with its own ports; the smaller number of the two sides is used, but at least one per rail.',
  },
  transportRails: {
    kind: 'text',
    env: 'WEFTLINE_TRANSPORT_RAILS',
    flag: '--rails <list>',
    default: '',
    sentence:
      'Network interfaces (rails) over which the paths of a connection are spread, paired with those of the peer by index: names, beginnings of names or addresses, with commas between them; =eth0 is an exact name, ^docker,veth all but these and loopback; empty: the address of the control channel.',
  },
  transportSegmentBytes: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_SEGMENT',
    flag: '--segment <bytes>',
    unit: 'bytes',
    min: 0,
    leastButZero: 512,
    max: 65_472,
    default: 0,
    sentence: 'Bytes of a packet including its header; 0: the largest size that reaches the peer.',
  },
  transportSegmentationOffload: {
    kind: 'boolean',
    env: 'WEFTLINE_TRANSPORT_GSO',
    flag: '--no-gso',
    default: true,
    sentence: 'Use UDP segmentation offload (GSO) where the kernel supports it: one send carries many packets.',
  },
  transportSocketBufferBytes: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_SOCKET_BUFFER',
    flag: '--socket-buffer <bytes>',
    unit: 'bytes',
    min: 65_536,
    max: 1_073_741_824,
    default: 16_777_216,
    sentence:
      'Buffer of each UDP socket in each direction; beyond net.core.rmem_max and wmem_max only with CAP_NET_ADMIN.',
  },
  transportSpinUs: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_SPIN_US',
    flag: '--transport-spin <us>',
    unit: 'µs',
    min: 0,
    max: 1_000_000,
    default: 0,
    sentence:
      'How long an engine polls its sockets after the last packet before it sleeps; raise it where the engine has a core to itself. 0: 200 in a process that may use eight cores or more, else 20.',
  },
  transportPinCore: {
    kind: 'text',
    env: 'WEFTLINE_TRANSPORT_PIN',
    flag: '--pin <cores>',
    default: '',
    pattern: {
      of: /^\s*\d{1,6}(?:-\d{1,6})?\s*(?:,\s*\d{1,6}(?:-\d{1,6})?\s*)*$/,
      expected: 'numbers of cores and ranges of them, such as 4,6,8-11',
    },
    sentence:
      "Cores that the engines' threads are pinned to, one each, such as 4,6,8-11; engines beyond the list take the cores that follow its last; empty: none.",
  },
  transportThread: {
    kind: 'boolean',
    env: 'WEFTLINE_TRANSPORT_THREAD',
    flag: '--no-engine-thread',
    default: true,
    sentence:
      "Run engines on threads of their own; otherwise one runs on the caller's thread, inside calls that wait, and answers sooner.",
  },
} as const satisfies Record<string, Setting>;

/** Settings of the protocol, whatever carries its packets. */
export const protocolSettingsTable = {
  transportCongestion: {
    kind: 'choice',
    env: 'WEFTLINE_TRANSPORT_CONGESTION',
    flag: '--congestion <algorithm>',
    choices: congestionNames,
    default: 'swift',
    sentence: `How the transport decides how many bytes may be in flight: ${congestionSummary}.`,
  },
  transportReceiverCredits: {
    kind: 'boolean',
    env: 'WEFTLINE_TRANSPORT_RECEIVER_CREDITS',
    flag: '--receiver-credits',
    default: false,
    sentence:
      'Receivers also give credits at the speed of their links (EQDS), together with the congestion control of the sender; a connection uses them if either side sets it.',
  },
  transportCongestionScope: {
    kind: 'choice',
    env: 'WEFTLINE_TRANSPORT_CONGESTION_SCOPE',
    flag: '--congestion-scope <scope>',
    choices: ['flow', 'path'],
    default: 'flow',
    sentence: 'Whether each flow or each path of a connection has its own congestion window.',
  },
  transportWindowBytes: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_WINDOW',
    flag: '--window <bytes>',
    unit: 'bytes',
    min: 1024,
    max: 1073741824,
    default: 2_097_152,
    sentence: 'Maximum bytes in flight per congestion window; with the algorithm fixed, the window itself.',
  },
  transportWindowSegments: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_WINDOW_SEGMENTS',
    flag: '--window-segments <count>',
    unit: 'segments',
    min: 64,
    max: 8192,
    default: 4096,
    sentence: 'Maximum unacknowledged segments of a connection; fewer if an acknowledgement cannot list so many.',
  },
  transportTargetDelayUs: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_TARGET_DELAY_US',
    flag: '--target-delay <us>',
    unit: 'µs',
    min: 0,
    max: 1000000,
    default: 0,
    sentence:
      'Queueing delay beyond the minimum round-trip time that swift and timely accept; raise it above twice the time of a burst (64 KiB) on a slow rail. 0: 5000 in a rank whose thread and engines are more than its cores, else 300.',
  },
  transportLinkGbps: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_LINK_GBPS',
    flag: '--link-gbps <Gbps>',
    unit: 'Gbps',
    min: 0.001,
    max: 10000,
    default: 100,
    sentence:
      'Speed of this host on the network, all its rails together: each flow starts at it with timely, and receivers give credits at it, each engine its share.',
  },
  transportCtsBytes: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_CTS_BYTES',
    flag: '--cts-bytes <bytes>',
    unit: 'bytes',
    min: 4096,
    max: 68719476736,
    default: 4_194_304,
    sentence:
      'Maximum bytes that a transport allows all its peers together to send to posted receives at a time, shared evenly by its engines; bounds incast. Raise it where all rails together carry more in a round trip.',
  },
  transportCtsChunkBytes: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_CTS_CHUNK',
    flag: '--cts-chunk <bytes>',
    unit: 'bytes',
    min: 1024,
    max: 1073741824,
    default: 262_144,
    sentence: 'Bytes of one grant to a sender; senders take turns, one grant each.',
  },
  transportEagerBytes: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_EAGER',
    flag: '--eager-bytes <bytes>',
    unit: 'bytes',
    min: 0,
    max: 8192,
    default: 1024,
    sentence:
      'Messages of at most so many bytes, if they fit a packet, are sent before the receiver has offered memory for them; the smaller value of the two sides is used. 0: none. Each connection takes two of them at a time.',
  },
  transportMinRtoUs: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_MIN_RTO_US',
    flag: '--min-rto <us>',
    unit: 'µs',
    min: 10,
    max: 10000000,
    default: 2000,
    sentence: 'Minimum retransmission timeout: the shortest silence after which a path is probed.',
  },
  transportAckDelayUs: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_ACK_DELAY_US',
    flag: '--ack-delay <us>',
    unit: 'µs',
    min: 0,
    max: 100000,
    default: 50,
    sentence: 'Maximum delay of an acknowledgement that waits for more segments.',
  },
  transportAckSegments: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_ACK_SEGMENTS',
    flag: '--ack-segments <count>',
    unit: 'segments',
    min: 1,
    max: 1024,
    default: 16,
    sentence: 'Number of segments after which an acknowledgement is sent at once.',
  },
  transportReorderSegments: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_REORDER',
    flag: '--reorder-segments <count>',
    unit: 'segments',
    min: 1,
    max: 1024,
    default: 3,
    sentence:
      'Reordering tolerance: how many later segments of the same path must arrive before a segment counts as lost; it grows when that proves wrong.',
  },
  transportKeepAliveMs: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_KEEP_ALIVE_MS',
    flag: '--keep-alive <ms>',
    unit: 'ms',
    min: 1,
    max: 3600000,
    default: 500,
    sentence:
      'How long a peer may be silent while requests are outstanding before it is probed; an idle connection sends nothing.',
  },
  transportGiveUpMs: {
    kind: 'number',
    env: 'WEFTLINE_TRANSPORT_GIVE_UP_MS',
    flag: '--give-up <ms>',
    unit: 'ms',
    min: 2,
    max: 86400000,
    default: 10_000,
    sentence:
      'How long a peer may be silent, or a segment fail to arrive, before its connection and all its requests fail.',
  },
  transportChecksum: {
    kind: 'choice',
    env: 'WEFTLINE_TRANSPORT_CHECKSUM',
    flag: '--checksum <cover>',
    choices: ['none', 'header', 'full'],
    default: 'header',
    sentence: 'What the CRC32C of each packet covers, over and above the checksum of UDP.',
  },
  transportAuthentication: {
    kind: 'boolean',
    env: 'WEFTLINE_TRANSPORT_AUTHENTICATION',
    flag: '--authenticate',
    default: false,
    sentence:
      'Tag every packet with a key of its connection, in place of the CRC32C, and drop packets that were forged, changed or replayed; used on a connection if either side sets it.',
  },
} as const satisfies Record<string, Setting>;

const transportSettingsTable = { ...hostSettings, ...protocolSettingsTable } as const;

// What a knob is made of.

interface NumberSetting {
  readonly kind: 'number';
  readonly env: string;
  readonly flag: string;
  readonly unit: string;
  /** 0 may stand for what weftline finds best, below `leastButZero`. */
  readonly min: number;
  readonly leastButZero?: number;
  readonly max: number;
  readonly default: number;
  readonly sentence: string;
}

interface BooleanSetting {
  readonly kind: 'boolean';
  readonly env: string;
  readonly flag: string;
  readonly default: boolean;
  readonly sentence: string;
}

interface TextSetting {
  readonly kind: 'text';
  readonly env: string;
  readonly flag: string;
  readonly default: string;
  /** Refuses texts that are wrong whatever this machine has; what it has is looked at where the setting is used. */
  readonly pattern?: { readonly of: RegExp; readonly expected: string };
  readonly sentence: string;
}

interface ChoiceSetting {
  readonly kind: 'choice';
  readonly env: string;
  readonly flag: string;
  readonly choices: readonly string[];
  readonly default: string;
  readonly sentence: string;
}

/** One knob: how it is written, what it allows, what it is without being set. */
export type Setting = NumberSetting | BooleanSetting | TextSetting | ChoiceSetting;

interface ValueOf {
  number: number;
  boolean: boolean;
  text: string;
}

/** Every setting by its name: its variable, flag, range, default and a sentence on what it does. */
export const settingsTable = {
  device: {
    kind: 'choice',
    env: 'WEFTLINE_DEVICE',
    flag: '--device <kind>',
    choices: ['auto', 'cpu', 'cuda'],
    default: 'auto',
    sentence: 'Device of the ranks; auto is cuda if every rank finds a GPU of its own, else cpu.',
  },
  hosts: {
    kind: 'text',
    env: 'WEFTLINE_HOSTS',
    flag: '--hosts <hosts>',
    default: '1',
    sentence:
      'For trials: ranks of one machine behave as if they lived on so many hosts, without shared memory, CUDA IPC or the local backend between them; 2 splits them evenly, 3+1 says how many each host has.',
  },
  aggregators: {
    kind: 'text',
    env: 'WEFTLINE_AGGREGATORS',
    flag: '--aggregator-ranks <list>',
    default: '',
    sentence:
      'World ranks that only add up what sparse all-reduces send them, such as 4,5; weftline run --aggregators sets it.',
  },
  timeoutMs: {
    kind: 'number',
    env: 'WEFTLINE_TIMEOUT_MS',
    flag: '--timeout <ms>',
    unit: 'ms',
    min: 1,
    max: 86_400_000,
    default: 60_000,
    sentence: 'How long any wait for another rank may last before it fails with WL_TIMEOUT.',
  },
  log: {
    kind: 'text',
    env: 'WEFTLINE_LOG',
    flag: '--log <levels>',
    default: '',
    sentence:
      'Lines to stderr about what weftline does: debug, info, warn or off, for all parts or for some (agent:debug,transport:info; parts are agent, device, device-api, transport, world); if empty, none.',
  },
  trace: {
    kind: 'text',
    env: 'WEFTLINE_TRACE',
    flag: '--trace <file>',
    default: '',
    sentence:
      'File for a trace of where time goes: each process leaves FILE.HOST.PID.part with the last 65,536 records of each thread and 262,144 of each GPU, also if it is killed; commands that start the processes make FILE of them, "weftline trace FILE" does it elsewhere. If empty, nothing is traced.',
  },
  metrics: {
    kind: 'text',
    env: 'WEFTLINE_METRICS',
    flag: '--metrics <host:port>',
    default: '',
    sentence:
      'Where metrics are served for Prometheus, such as 127.0.0.1:9400: the first rank of a machine serves there, each further one on the next port; on collects them for "weftline stats" without a port. If empty, only counters are kept.',
  },
  spinUs: {
    kind: 'number',
    env: 'WEFTLINE_SPIN_US',
    flag: '--spin <us>',
    unit: 'µs',
    min: 0,
    max: 1_000_000,
    default: 500,
    sentence:
      'Maximum time that the ranks of an EpBuffer, an EPAll2AllLayer or another object with a window poll for each other before they sleep; between looks they lend their processor to other threads (sched_yield). They poll less after waits that took longer, and while other threads compute on their processor.',
  },
  agentSpinUs: {
    kind: 'number',
    env: 'WEFTLINE_AGENT_SPIN_US',
    flag: '--agent-spin <us>',
    unit: 'µs',
    min: 0,
    max: 1_000_000,
    default: 200,
    sentence:
      'Maximum time that a blocking wait of an agent polls before it sleeps, if the agent has peers on its host or over RDMA. The wait polls less after waits that took longer, and more after short ones. Without such peers it polls for at most 20 µs; asynchronous waits never poll.',
  },
  collectiveSpinUs: {
    kind: 'number',
    env: 'WEFTLINE_COLLECTIVE_SPIN_US',
    flag: '--collective-spin <us>',
    unit: 'µs',
    min: 0,
    max: 1_000_000,
    default: 500,
    sentence:
      'How long a call of a Communicator or an EpLowLatency polls without progress before it sleeps; between looks it lends its processor to other threads (sched_yield).',
  },
  collectiveTable: {
    kind: 'text',
    env: 'WEFTLINE_COLLECTIVE_TABLE',
    flag: '--collective-table <file>',
    default: '',
    sentence:
      'A file of measured algorithms by size, for Communicator; weftline bench collectives --tune writes it. Without it, or for other numbers of ranks and hosts, those built in are used.',
  },
  reserveSharedMemory: {
    kind: 'boolean',
    env: 'WEFTLINE_RESERVE_SHM',
    flag: '--no-reserve-shm',
    default: true,
    sentence:
      'Reserve the pages of every window at creation, so that a full /dev/shm is an error then rather than a crash later.',
  },
  addressSpaceMiB: {
    kind: 'number',
    env: 'WEFTLINE_ADDRESS_SPACE_MIB',
    flag: '--address-space <MiB>',
    unit: 'MiB',
    min: 16,
    max: 4096,
    default: 4096,
    sentence: 'Maximum memory that a CPU rank may address: its tensors and the windows of all ranks of its host.',
  },
  graceMs: {
    kind: 'number',
    env: 'WEFTLINE_GRACE_MS',
    flag: '--grace <ms>',
    unit: 'ms',
    min: 0,
    max: 600_000,
    default: 1_000,
    sentence:
      'After one rank ended with an error, how long the launcher lets the others report their own before it stops them.',
  },
  stopMs: {
    kind: 'number',
    env: 'WEFTLINE_STOP_MS',
    flag: '--stop <ms>',
    unit: 'ms',
    min: 0,
    max: 600_000,
    default: 10_000,
    sentence:
      'How long ranks may take to end after the signal that stops them, on all nodes; then the launcher kills those that are left. A second signal to the launcher kills them at once.',
  },
  storeMaxValueBytes: {
    kind: 'number',
    env: 'WEFTLINE_STORE_MAX_VALUE',
    flag: '--store-max-value <bytes>',
    unit: 'bytes',
    min: 1024,
    max: 1_073_741_824,
    default: 16_777_216,
    sentence: 'Largest value that the rendezvous store accepts.',
  },
  notificationBytes: {
    kind: 'number',
    env: 'WEFTLINE_NOTIFICATION_BYTES',
    flag: '--notification-bytes <bytes>',
    unit: 'bytes',
    min: 1,
    max: 1_073_741_824,
    default: 16_777_216,
    sentence:
      'Maximum unread notification bytes buffered per peer, counting 64 bytes of overhead per notification; beyond that, posts of the peer that carry a message fail with WL_BUSY.',
  },
  maxStrangers: {
    kind: 'number',
    env: 'WEFTLINE_MAX_STRANGERS',
    flag: '--max-strangers <n>',
    unit: 'connections',
    min: 1,
    max: 65_536,
    default: 1024,
    sentence:
      "Maximum connections of callers that have not authenticated yet, over all listeners of a thread, and at most a quarter of the process's limit of open files; when more callers come, the oldest are dropped.",
  },
  greetingMs: {
    kind: 'number',
    env: 'WEFTLINE_GREETING_MS',
    flag: '--greeting <ms>',
    unit: 'ms',
    min: 1,
    max: 600_000,
    default: 10_000,
    sentence: 'How long a caller may take to authenticate before it is dropped.',
  },
  localSenders: {
    kind: 'number',
    env: 'WEFTLINE_LOCAL_SENDERS',
    flag: '--local-senders <count>',
    unit: 'agents',
    min: 1,
    max: 32_768,
    default: 1024,
    sentence:
      'Maximum agents of the same host that are linked to one agent by the local backend at a time; further agents use another backend.',
  },
  nvrtcPath: {
    kind: 'text',
    env: 'WEFTLINE_NVRTC',
    flag: '--nvrtc <path>',
    default: '',
    sentence:
      'Path of libnvrtc.so, which compiles GPU kernels, or of its folder; if empty, CUDA_HOME, toolkits and Python packages are searched.',
  },
  expertProduct: {
    kind: 'choice',
    env: 'WEFTLINE_EXPERT_PRODUCT',
    flag: '--expert-product <kind>',
    choices: ['auto', 'cublas', 'kernel'],
    default: 'auto',
    sentence:
      "Matrix product of experts on GPUs; auto: weftline's kernel for small batches, cuBLAS (if found) for large ones.",
  },
  cublasPath: {
    kind: 'text',
    env: 'WEFTLINE_CUBLAS',
    flag: '--cublas <path>',
    default: '',
    sentence: 'Path of libcublas.so or of its folder; if empty, the places of NVRTC are searched.',
  },
  cacheFolder: {
    kind: 'text',
    env: 'WEFTLINE_CACHE',
    flag: '--cache <folder>',
    default: '',
    sentence:
      'Folder in which compiled GPU kernels are cached; if empty, $XDG_CACHE_HOME/weftline or ~/.cache/weftline.',
  },
  aotFolder: {
    kind: 'text',
    env: 'WEFTLINE_AOT_FOLDER',
    flag: '--aot-folder <folder>',
    default: '',
    sentence: 'Folder that "weftline compile" filled; its GPU kernels are used before any is compiled.',
  },
  useAot: {
    kind: 'boolean',
    env: 'WEFTLINE_USE_AOT',
    flag: '--use-aot',
    default: false,
    sentence: 'Run only GPU kernels of the AOT folder; never compile one.',
  },
  unpack: {
    kind: 'choice',
    env: 'WEFTLINE_UNPACK',
    flag: '--unpack <mode>',
    choices: ['kernel', 'd2d'],
    default: 'kernel',
    sentence:
      'How the server of "weftline bench unpack" moves received pages to their places: by the unpack kernel, or by copies one by one.',
  },
  proxySpinUs: {
    kind: 'number',
    env: 'WEFTLINE_PROXY_SPIN_US',
    flag: '--proxy-spin <us>',
    unit: 'µs',
    min: 0,
    max: 60_000_000,
    default: 5_000,
    sentence:
      "How long the thread that serves a device's command queues polls after the last command; then it looks once per millisecond or, while a CUDA graph with calls across hosts exists, every 0.1 ms.",
  },
  stagingPieceBytes: {
    kind: 'number',
    env: 'WEFTLINE_STAGING_PIECE',
    flag: '--staging-piece <bytes>',
    unit: 'bytes',
    min: 65_536,
    max: 16_777_216,
    default: 1_048_576,
    sentence:
      'Maximum size of the pieces in which memory of GPUs travels between hosts, through pinned memory of the host.',
  },
  stagingPieces: {
    kind: 'number',
    env: 'WEFTLINE_STAGING_PIECES',
    flag: '--staging-pieces <count>',
    unit: 'pieces',
    min: 0,
    max: 64,
    default: 0,
    sentence:
      'How many such pieces may be under way per peer and direction; each takes its size in pinned memory on both sides. 0: 4 for each engine of the transport, 8 at least.',
  },
  ...rdmaSettingsTable,
  ...transportSettingsTable,
} as const satisfies Record<string, Setting>;

export type SettingName = keyof typeof settingsTable;

type SettingValue<S extends Setting> = S extends { readonly kind: 'choice' }
  ? S['choices'][number]
  : ValueOf[Exclude<S['kind'], 'choice'>];

/** The value of every setting, as readSettings() returns them. */
export type Settings = {
  readonly [Name in SettingName]: SettingValue<(typeof settingsTable)[Name]>;
};

/**
 * Reads all settings: an override wins over the environment, which wins over the default. What `log` says holds for the
 * thread from then on. Fails with WL_CONFIG, and with WL_INVALID_ARGUMENT for an override of a setting that does not exist.
 * @param overrides Values by name; they win.
 * @param environment The variables; process.env by default.
 */
export function readSettings(
  overrides: Partial<Settings> = {},
  environment: Readonly<Record<string, string | undefined>> = process.env,
): Settings {
  checkOptions(overrides, settingsTable, 'settings');
  const result: Record<string, number | boolean | string> = {};
  for (const [name, setting] of Object.entries(settingsTable)) {
    const override = overrides[name as SettingName];
    const text = environment[setting.env];
    if (override !== undefined) result[name] = check(setting, name, override);
    else if (text !== undefined && text !== '') result[name] = check(setting, setting.env, parse(setting, text));
    else result[name] = setting.default;
  }
  const settings = Object.freeze(result) as Settings;
  setLogLevels(settings.log);
  return settings;
}

/** Counts and sizes are whole: they end up in layouts that others read. */
const fractionalUnits: ReadonlySet<string> = new Set(['ms', 'µs', 'Gbps']);

function parse(setting: Setting, text: string): unknown {
  if (setting.kind === 'text') return text;
  if (setting.kind === 'choice') return text.trim();
  if (setting.kind === 'number') return /^[0-9]+(\.[0-9]+)?$/.test(text.trim()) ? Number(text) : text;
  const word = text.trim().toLowerCase();
  if (['1', 'true', 'yes', 'on'].includes(word)) return true;
  if (['0', 'false', 'no', 'off'].includes(word)) return false;
  return text;
}

function check(setting: Setting, source: string, value: unknown): number | boolean | string {
  if (setting.kind === 'text') {
    if (typeof value !== 'string') throw wrong(source, value, 'a string');
    const { pattern } = setting;
    if (value === '' || pattern === undefined || pattern.of.test(value)) return value;
    throw wrong(source, value, pattern.expected);
  }
  if (setting.kind === 'choice') {
    if (typeof value === 'string' && setting.choices.includes(value)) return value;
    throw wrong(source, value, setting.choices.join(', '));
  }
  if (setting.kind === 'boolean') {
    if (typeof value === 'boolean') return value;
    throw wrong(source, value, '1, 0, true, false, yes, no, on or off');
  }
  return checkNumber(setting, source, value);
}

function checkNumber(
  { unit, min, max, leastButZero: least = min }: Extract<Setting, { kind: 'number' }>,
  source: string,
  value: unknown,
): number {
  const mayBeFraction = fractionalUnits.has(unit);
  const isInRange = typeof value === 'number' && value >= min && value <= max && (value === 0 || value >= least);
  if (isInRange && (mayBeFraction || Number.isInteger(value))) return value;
  const kind = mayBeFraction ? 'a number' : 'a whole number';
  throw wrong(source, value, `${least > min ? '0, or ' : ''}${kind} of ${unit} from ${least} to ${max}`);
}

function wrong(source: string, value: unknown, expected: string): WeftlineError {
  return new WeftlineError('WL_CONFIG', `Invalid setting ${source}: expected ${expected}, got ${quote(value)}`, {
    details: { setting: source, value, expected },
  });
}

/** The option, else WEFTLINE_TOKEN; an empty string means that there is none. */
export function readToken(
  option: string | undefined,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): string {
  if (option !== undefined && typeof option !== 'string') {
    throw invalidArgument('token', typeof option, 'a string, best of 32 random bytes in hexadecimal digits');
  }
  if (option !== undefined && option !== '') return option;
  return environment['WEFTLINE_TOKEN']?.trim() ?? '';
}
