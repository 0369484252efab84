// Which of its transports UCX may use, and at which address its ports listen.
import { isIPv6 } from 'node:net';
import { type NetworkInterfaceInfo, networkInterfaces } from 'node:os';
import { WeftlineError } from '../../../core/errors.ts';
import { quote } from '../../../core/quote.ts';
import { isLoopback } from '../../../meeting/loopback.ts';
import { localFiles } from '../../../native/file-probe.ts';
import { activeRdmaPorts } from '../../../native/rdma-ports.ts';

/** What the choice depends on. */
export interface UcxSurroundings {
  /** UCX_TLS, UCX_NET_DEVICES and settings of transports, as the user has set them. */
  readonly env: Readonly<Record<string, string | undefined>>;
  /** The address that peers reach this host by. */
  readonly host: string;
  /** "mlx5_0:1" */
  readonly rdmaPorts: readonly string[];
  readonly interfaces: Readonly<
    Record<string, readonly Pick<NetworkInterfaceInfo, 'address' | 'internal'>[] | undefined>
  >;
}

export interface UcxTransports {
  /** Settings of the context, for `ucp_config_modify`: of UCX itself, and of its transports unless the user has set them. */
  readonly config: Readonly<Record<string, string>>;
  readonly tuning: Readonly<Record<string, string>>;
  /** True: peers of this host by shared memory alone, no port is open. False: all peers over a network. */
  readonly isMemoryOnly: boolean;
  /** A device may read and write memory while no thread works for UCX: RDMA, or a transport that is not known here. */
  readonly usesDevices: boolean;
  /**
   * Devices carry out puts and gets, and check the keys of memory. Elsewhere UCX would have messages do it, which write
   * wherever the peer says: it is then not even told that there are puts.
   */
  readonly putsAreNative: boolean;
}

/**
 * These copy straight from the memory of another process. When that process dies meanwhile, cma aborts this one
 * (UCX 1.13, cma_ep.c:81: No such process); knem and xpmem depend on the other process's memory in the same way.
 */
const copiers: readonly string[] = ['cma', 'knem', 'xpmem'];
/** Queue pairs of a reliable connection, under all their names, with what goes beside them without puts of its own. */
const reliable = /^(ib|(rc|dc)(_\w+)?)$/;
const besides = /^(self|ud(_\w+)?)$/;
const memories: readonly string[] = ['posix', 'sysv', 'self'];
/** What UCX means by these, but for the copiers, and for sysv, whose segments are open to the user's whole group. */
const aliases: Readonly<Record<string, string>> = { sm: 'posix', shm: 'posix', mm: 'posix' };

interface TransportSetting {
  /**
   * Up to some version a transport's settings have no prefix, later they have the transport's. What UCX does not know it
   * leaves out, with a warning in its log.
   */
  readonly names: readonly string[];
  readonly value: string;
  /** By which the user may have set it. */
  readonly variables: readonly string[];
}

const tcpSettings: readonly TransportSetting[] = [
  // UCX has two ways to send large messages over TCP. The one that it takes for endpoints that tell when their peer is lost
  // cuts them into pieces of the receiver's buffers: with its 64 KiB it reaches two thirds of the other, with these all of it.
  { names: ['RX_SEG_SIZE', 'TCP_RX_SEG_SIZE'], value: '256K', variables: ['UCX_TCP_RX_SEG_SIZE'] },
];
const ipv6Settings: readonly TransportSetting[] = [
  { names: ['AF_PRIO', 'TCP_AF_PRIO'], value: 'inet6', variables: ['UCX_TCP_AF_PRIO'] },
];

const memorySettings: readonly TransportSetting[] = [
  // So that UCX tells of a lost peer and closes its endpoint over shared memory as it does over a network; without, nothing
  // of an endpoint to a process that was killed could be freed. Not together with TCP: see `defaultTransports`.
  ofSharedMemory('ERROR_HANDLING', 'y'),
  // Large messages cross in pieces of this size, each with its own place in the queue. UCX has 8 KiB and 512 buffers: as much
  // memory.
  ofSharedMemory('SEG_SIZE', '32K'),
  ofSharedMemory('RX_BUFS_GROW', '128'),
];

function ofSharedMemory(name: string, value: string): TransportSetting {
  const variables = ['MM', 'POSIX', 'SYSV'].map((transport) => `UCX_${transport}_${name}`);
  return { names: [`MM_${name}`], value, variables };
}

export function localSurroundings(host: string): UcxSurroundings {
  return { env: process.env, host, rdmaPorts: activeRdmaPorts(localFiles()), interfaces: networkInterfaces() };
}

/** Fails with WL_CONFIG for a UCX_TLS that is not allowed, and for a host whose address UCX cannot listen at. */
export function chooseTransports(around: UcxSurroundings): UcxTransports {
  const { names, isExcluding } = readNames(around.env['UCX_TLS'] ?? defaultTransports(around));
  const list = `${isExcluding ? '^' : ''}${names.join(',')}`;
  const isMemoryOnly = !isExcluding && names.every((name) => memories.includes(bare(name)));
  const usesDevices = isExcluding || !names.every((name) => [...memories, 'tcp'].includes(bare(name)));
  const putsAreNative = hasNativePuts(names.map(bare), isExcluding);
  const usesTcp = names.some((name) => bare(name) === 'tcp') !== isExcluding;
  const devices = usesTcp && around.env['UCX_NET_DEVICES'] === undefined ? { NET_DEVICES: devicesOf(around) } : {};
  const settings = [
    ...(usesTcp ? tcpSettings : []),
    ...(usesTcp && isIPv6(around.host) ? ipv6Settings : []),
    ...(isMemoryOnly ? memorySettings : []),
  ].filter(({ variables }) => variables.every((variable) => around.env[variable] === undefined));
  const tuning = Object.fromEntries(settings.flatMap(({ names: known, value }) => known.map((name) => [name, value])));
  return { config: { TLS: list, ...devices }, tuning, isMemoryOnly, usesDevices, putsAreNative };
}

function hasNativePuts(names: readonly string[], isExcluding: boolean): boolean {
  const hasReliable = names.some((name) => reliable.test(name));
  if (!isExcluding) return hasReliable && names.every((name) => reliable.test(name) || besides.test(name));
  return !hasReliable && ['tcp', 'posix', 'sysv'].every((name) => names.includes(name));
}

/**
 * One kind of transport at a time: UCX 1.13 aborts the process (ucp_request.c:684) when a peer dies to which it has both shared
 * memory and TCP. Where peers can only be on this host, shared memory needs no port that others could reach.
 */
function defaultTransports({ host, rdmaPorts }: UcxSurroundings): string {
  if (rdmaPorts.length > 0) return '^tcp,posix,sysv';
  return isLoopback(host) ? 'posix,self' : 'tcp,self';
}

function readNames(said: string): { readonly names: readonly string[]; readonly isExcluding: boolean } {
  const words = said
    .replace(/^\^/, '')
    .split(',')
    .map((word) => word.trim())
    .filter((word) => word !== '');
  const without = [...copiers, 'sysv'];
  if (said.startsWith('^')) return { names: [...new Set([...words, ...without])], isExcluding: true };
  if (words.includes('all')) return { names: without, isExcluding: true };
  const copier = words.find((word) => copiers.includes(bare(word)));
  if (copier !== undefined) {
    throw new WeftlineError(
      'WL_CONFIG',
      `Invalid UCX_TLS: expected a list without ${copiers.join(', ')}, got ${quote(said)}; with ${copier}, UCX ends this process when a peer dies during a copy: leave it out`,
      { details: { UCX_TLS: said, transport: copier } },
    );
  }
  return { names: [...new Set(words.map((word) => aliases[word] ?? word))], isExcluding: false };
}

/** UCX allows "\tcp" (no alias) and "tcp:aux" (only to connect). */
function bare(word: string): string {
  return word.replace(/^\\/, '').replace(/:.*$/, '');
}

/** UCX opens a TCP port on each network device that it may use, at the device's first address of the family. */
function devicesOf({ host, rdmaPorts, interfaces }: UcxSurroundings): string {
  const isFamily = ({ address }: { readonly address: string }): boolean => isIPv6(address) === isIPv6(host);
  const all = Object.entries(interfaces).map(([name, addresses = []]) => ({ name, addresses }));
  const owner = isLoopback(host)
    ? all.find(({ addresses }) => addresses.some(({ internal }) => internal))
    : all.find(({ addresses }) => addresses.some(({ address }) => address === host));
  const first = owner?.addresses.find(isFamily)?.address;
  if (owner === undefined || (!isLoopback(host) && first !== host)) {
    const known = all.flatMap(({ name, addresses }) =>
      addresses.slice(0, 1).map(({ address }) => `${address} (${name})`),
    );
    throw new WeftlineError(
      'WL_CONFIG',
      `UCX cannot listen at ${host}: expected ${owner === undefined ? `an address of this host: ${known.join(', ')}` : `the first address of ${owner.name}, ${String(first)}`}; give that as host, or name the device in UCX_NET_DEVICES`,
      { details: { host } },
    );
  }
  return [owner.name, ...rdmaPorts].join(',');
}
