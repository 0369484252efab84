// The socket calls that move datagrams in batches, on blocks of native memory that the caller prepared.
import { nativeError } from './native-error.ts';
import { addressFamily, encodeSocketAddress, portOf, type SocketAddress } from './socket-address.ts';
import { systemCall } from './system-call.ts';

const socketFunction = systemCall('int socket(int, int, int)');
const bindFunction = systemCall('int bind(int, void*, int)');
const connectFunction = systemCall('int connect(int, void*, int)');
const getsocknameFunction = systemCall('int getsockname(int, void*, void*)');
const setsockoptFunction = systemCall('int setsockopt(int, int, int, void*, int)');
const getsockoptFunction = systemCall('int getsockopt(int, int, int, void*, void*)');
const sendmmsgFunction = systemCall('int sendmmsg(int, intptr_t, uint32_t, int)');
const recvmmsgFunction = systemCall('int recvmmsg(int, intptr_t, uint32_t, int, intptr_t)');
const recvFunction = systemCall('int recv(int, intptr_t, uintptr_t, int)');
const closeFunction = systemCall('int close(int)');

const SOCK_DGRAM = 2;
const SOCK_CLOEXEC = 0o2000000;
const SOCK_NONBLOCK = 0o4000;
const MSG_PEEK = 0x02;
const MSG_TRUNC = 0x20;
const MSG_DONTWAIT = 0x40;

/** struct tcp_info: where the numbers stand that are of use, and how many of its bytes are asked for. */
const tcpInfoOffset = { probes: 3, unacked: 24, lastAckReceived: 56 } as const;
const TCP_INFO_BYTES = 60;

/** Levels and names of the socket options that the transport uses, as Linux numbers them. */
const socketOption = {
  sendBuffer: [1, 7],
  receiveBuffer: [1, 8],
  /** The same beyond the system's limit; needs CAP_NET_ADMIN. */
  sendBufferForce: [1, 32],
  receiveBufferForce: [1, 33],
  /** After so many probes of an idle connection without an answer, TCP gives it up. */
  tcpKeepAliveCount: [6, 6],
  /** 2: never fragment, datagrams beyond the MTU are refused. */
  mtuDiscoverV4: [0, 10],
  mtuDiscoverV6: [41, 23],
  /** Of a connected socket: what the route allows, IP header included. */
  mtuV4: [0, 14],
  mtuV6: [41, 24],
  udpSegment: [17, 103],
  udpReceiveOffload: [17, 104],
} as const satisfies Record<string, readonly [level: number, name: number]>;

type SocketOption = keyof typeof socketOption;

/** A UDP socket bound to `local` (port 0: any). Fails with WL_NATIVE. */
export function openUdpSocket(local: SocketAddress): number {
  const fd: number = socketFunction()(addressFamily(local.host), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) throw nativeError('socket', 'opening a UDP socket', fd);
  const address = encodeSocketAddress(local);
  const result: number = bindFunction()(fd, address, address.length);
  if (result === 0) return fd;
  closeDescriptor(fd);
  throw nativeError('bind', `binding a UDP socket to ${local.host} port ${local.port}`, result);
}

/** From then on the socket receives from that peer only. */
export function connectUdpSocket(fd: number, peer: SocketAddress): void {
  const address = encodeSocketAddress(peer);
  const result: number = connectFunction()(fd, address, address.length);
  if (result !== 0) throw nativeError('connect', `connecting a UDP socket to ${peer.host} port ${peer.port}`, result);
}

export function localPort(fd: number): number {
  const address = new Uint8Array(28);
  const length = Int32Array.of(address.length);
  const result: number = getsocknameFunction()(fd, address, length);
  if (result !== 0) throw nativeError('getsockname', 'reading the port of a socket', result);
  return portOf(address);
}

/** False when the system refuses: callers ask for what they can do without. */
export function setSocketOption(fd: number, option: SocketOption, value: number): boolean {
  const [level, name] = socketOption[option];
  return setsockoptFunction()(fd, level, name, Int32Array.of(value), 4) === 0;
}

/** undefined when the system does not tell. */
export function getSocketOption(fd: number, option: SocketOption): number | undefined {
  const [level, name] = socketOption[option];
  const value = new Int32Array(1);
  return getsockoptFunction()(fd, level, name, value, Int32Array.of(4)) === 0 ? value[0] : undefined;
}

const IPPROTO_TCP = 6;
const TCP_INFO = 11;

/** Of a TCP connection: packets and probes that wait for an answer, and how long ago the last answer came. */
export function readTcpInfo(fd: number): { readonly unanswered: number; readonly sinceAnswerMs: number } | undefined {
  const bytes = new Uint8Array(TCP_INFO_BYTES);
  if (getsockoptFunction()(fd, IPPROTO_TCP, TCP_INFO, bytes, Int32Array.of(bytes.length)) !== 0) return undefined;
  const view = new DataView(bytes.buffer);
  return {
    unanswered: view.getUint8(tcpInfoOffset.probes) + view.getUint32(tcpInfoOffset.unacked, true),
    sinceAnswerMs: view.getUint32(tcpInfoOffset.lastAckReceived, true),
  };
}

/** Hot path. Sends `count` of the mmsghdr at `address`; returns how many went, or a negative errno. */
export function sendMessages(fd: number, address: number, count: number): number {
  return sendmmsgFunction()(fd, address, count, MSG_DONTWAIT);
}

/** Hot path. Receives into at most `count` of the mmsghdr at `address`; returns how many came, or a negative errno. */
export function receiveMessages(fd: number, address: number, count: number): number {
  return recvmmsgFunction()(fd, address, count, MSG_DONTWAIT, 0);
}

/** Hot path. Copies the beginning of the next datagram, which stays where it is. Returns how long it is, or a negative errno. */
export function peekMessage(fd: number, address: number, bytes: number): number {
  return recvFunction()(fd, address, bytes, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
}

export function closeDescriptor(fd: number): void {
  closeFunction()(fd);
}
