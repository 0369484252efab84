// The knobs of RDMA by verbs.
import type { Setting } from './setting.ts';

/** Of devices, ports, addresses and queue pairs. */
export const rdmaSettingsTable = {
  rdmaDevices: {
    kind: 'text',
    env: 'WEFTLINE_RDMA_DEVICES',
    flag: '--rdma-devices <list>',
    default: '',
    sentence:
      'RDMA devices that "weftline doctor --rdma" may choose (nothing sends by them yet; UCX has UCX_NET_DEVICES): names or beginnings of names with commas between them, each with :port if only that port may be; =mlx5_1 is an exact name, ^mlx5_0 all but these; empty: all.',
  },
  rdmaPort: {
    kind: 'number',
    env: 'WEFTLINE_RDMA_PORT',
    flag: '--rdma-port <port>',
    unit: 'ports',
    min: 0,
    max: 255,
    default: 0,
    sentence: 'Number of the port of the RDMA devices that may be chosen; 0: each that is active.',
  },
  rdmaGidIndex: {
    kind: 'text',
    env: 'WEFTLINE_RDMA_GID_INDEX',
    flag: '--rdma-gid-index <index>',
    default: '',
    sentence:
      'Index of the address (GID) by which peers reach a port; empty: over Ethernet that of RoCE v2 with an IPv4 address, or else with an IPv6 address, over InfiniBand 0.',
  },
  rdmaService: {
    kind: 'choice',
    env: 'WEFTLINE_RDMA_SERVICE',
    flag: '--rdma-service <service>',
    choices: ['rc', 'uc', 'ud'],
    default: 'rc',
    sentence:
      'Queue pairs over which data goes: rc, the device repeats what is lost; uc and ud, weftline does, over connections or datagrams.',
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
      'Traffic class of RDMA packets; over Ethernet the byte of IP headers that holds DSCP (4 times it) and ECN.',
  },
  rdmaRelaxedOrdering: {
    kind: 'boolean',
    env: 'WEFTLINE_RDMA_RELAXED_ORDERING',
    flag: '--rdma-relaxed-ordering',
    default: false,
    sentence:
      'Let writes of RDMA devices into registered memory pass each other on the PCI bus, where the device can; faster on some hosts.',
  },
  rdmaControlInterface: {
    kind: 'text',
    env: 'WEFTLINE_RDMA_CONTROL_INTERFACE',
    flag: '--rdma-control-interface <name>',
    default: '',
    sentence:
      'The one network interface of this host over which peers of RDMA meet (TCP), whichever devices carry the data; empty: that of the address at which they call each other.',
  },
} as const satisfies Record<string, Setting>;
