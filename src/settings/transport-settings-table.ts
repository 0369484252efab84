// The knobs of the transport.
import { congestionNames, congestionSummary } from '../congestion/congestion.ts';

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
      'How several engines share what is large: whole messages, writes and reads in turn, each split over all, or each flow on an engine of its own; turn if the two sides of a connection differ.',
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

export const transportSettingsTable = { ...hostSettings, ...protocolSettingsTable } as const;

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
