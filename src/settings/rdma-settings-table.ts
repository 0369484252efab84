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
