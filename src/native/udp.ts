// The socket calls that move datagrams in batches, on blocks of native memory that the caller prepared.
import { isIPv4, isIPv6, type Socket } from 'node:net';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { NativeBlock, nativeError } from './library.ts';
import { systemCall } from './system-call.ts';

// What node:net leaves out of TCP: an end of connections to machines that have vanished.

/** A vanished machine is noticed after so long at the latest. */
const MAX_SILENCE_MS = 25_000;
/** A system that is short of memory may let a second pass before it answers what is sent again. */
const MIN_SILENCE_MS = 3000;
/** The first sign of life is asked for after this share of the time; then there is one a second. */
const PROBES_FROM = 1 / 3;
const PROBE_INTERVAL_MS = 1000;
/** How often it is looked whether what was sent is answered, as a share of the time; an end comes up to two looks late. */
const LOOK_SHARE = 1 / 8;

/**
 * Ends a connection, by its connected socket, whose other end has answered nothing for so long, 3 to 25 s:
 * neither to what was sent nor, where nothing was, to probes. The peer's system answers, however busy its process is, also
 * when it has no more room for what that does not read. By itself TCP gives up what was sent after a quarter of an hour; its
 * option TCP_USER_TIMEOUT would end connections to processes that are busy for so long, too.
 */
export function endWhenSilent(socket: Socket, milliseconds: number): void {
  const most = Math.max(MIN_SILENCE_MS, Math.min(MAX_SILENCE_MS, milliseconds));
  const idle = Math.max(PROBE_INTERVAL_MS, most * PROBES_FROM);
  socket.setKeepAlive(true, idle);
  if (process.platform !== 'linux' || descriptorOf(socket) < 0) return;
  setSocketOption(descriptorOf(socket), 'tcpKeepAliveCount', Math.max(1, Math.ceil((most - idle) / PROBE_INTERVAL_MS)));
  const watch = new SilenceWatch(socket, most);
  const timer = setInterval(() => watch.look(), most * LOOK_SHARE);
  timer.unref();
  socket.once('close', () => clearInterval(timer));
}

/** Whether what is on its way is answered. */
class SilenceWatch {
  readonly #socket: Socket;
  readonly #most: number;
  #lookedAt = performance.now();
  /** The first look since the last answer that found something on its way. */
  #silentSince: number | undefined;

  constructor(socket: Socket, most: number) {
    this.#socket = socket;
    this.#most = most;
  }

  look(): void {
    const info = readTcpInfo(descriptorOf(this.#socket));
    if (info === undefined) return;
    const now = performance.now();
    const wasAnswered = info.sinceAnswerMs <= now - this.#lookedAt;
    this.#lookedAt = now;
    if (info.unanswered === 0) this.#silentSince = undefined;
    else if (this.#silentSince === undefined || wasAnswered) this.#silentSince = now;
    else if (now - this.#silentSince >= this.#most * (1 - 2 * LOOK_SHARE)) this.#socket.destroy(silent(this.#most));
  }
}

function silent(milliseconds: number): WeftlineError {
  return new WeftlineError('WL_PEER_LOST', `The other end's system answered nothing for ${milliseconds} ms`);
}

/** -1 if there is none. */
function descriptorOf(socket: Socket): number {
  const handle = Reflect.get(socket, '_handle') as { readonly fd?: number } | null | undefined;
  return handle?.fd ?? -1;
}

// The bytes by which the kernel names an IPv4 or IPv6 address and port.

const AF_INET = 2;
const AF_INET6 = 10;

/** struct sockaddr_in and sockaddr_in6: the family is in the machine's order, the port and IPv6 groups in the network's. */
const socketAddressOffset = { family: 0, port: 2, ipv4: 4, ipv6: 8 } as const;
const SOCKADDR_IN_BYTES = 16;
const SOCKADDR_IN6_BYTES = 28;

/** Numeric: names are resolved where they are entered. */
export interface SocketAddress {
  readonly host: string;
  readonly port: number;
}

function addressFamily(host: string): number {
  if (isIPv4(host)) return AF_INET;
  if (isIPv6(host)) return AF_INET6;
  throw invalidArgument('host', host, 'a numeric IPv4 or IPv6 address');
}

/** struct sockaddr_in or sockaddr_in6. */
export function encodeSocketAddress({ host, port }: SocketAddress): Uint8Array {
  const family = addressFamily(host);
  const bytes = new Uint8Array(family === AF_INET ? SOCKADDR_IN_BYTES : SOCKADDR_IN6_BYTES);
  const view = new DataView(bytes.buffer);
  view.setUint16(socketAddressOffset.family, family, true);
  view.setUint16(socketAddressOffset.port, port, false);
  if (family === AF_INET) bytes.set(host.split('.').map(Number), socketAddressOffset.ipv4);
  else
    for (const [index, group] of groupsOf(host).entries())
      view.setUint16(socketAddressOffset.ipv6 + 2 * index, group, false);
  return bytes;
}

/** The port of what encodeSocketAddress made or the kernel filled in. */
export function portOf(bytes: Uint8Array): number {
  return new DataView(bytes.buffer, bytes.byteOffset).getUint16(socketAddressOffset.port, false);
}

/** The eight 16-bit groups of an IPv6 address; a zone after "%" has no place in them and is left out. */
function groupsOf(host: string): number[] {
  const text = (host.split('%')[0] as string).replace(/(\d+)\.(\d+)\.(\d+)\.(\d+)$/, (_all, ...bytes: string[]) => {
    const [a, b, c, d] = bytes.slice(0, 4).map(Number) as [number, number, number, number];
    return `${((a << 8) | b).toString(16)}:${((c << 8) | d).toString(16)}`;
  });
  const [head = '', tail] = text.split('::');
  const before = parseGroups(head);
  const after = parseGroups(tail ?? '');
  const zeros = Array.from({ length: 8 - before.length - after.length }, () => 0);
  return [...before, ...zeros, ...after];
}

function parseGroups(text: string): number[] {
  return text === '' ? [] : text.split(':').map((group) => parseInt(group, 16));
}

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
  /** Probes of an idle connection without an answer after which TCP gives it up. */
  tcpKeepAliveCount: [6, 6],
  /** 2: never fragment, datagrams beyond the MTU are refused. */
  mtuDiscoverV4: [0, 10],
  mtuDiscoverV6: [41, 23],
  /** Bytes that the route of a connected socket allows, IP header included. */
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

/** The socket receives from that peer only from then on. */
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

/** Packets and probes of a TCP connection that wait for an answer, and how long ago the last answer came. */
function readTcpInfo(fd: number): { readonly unanswered: number; readonly sinceAnswerMs: number } | undefined {
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

// Structures of the Linux kernel here and in the other files of this folder are those of x86-64 and arm64: little-endian, 64 bits.

/** struct mmsghdr, in words of 32 bits: name, name length, iovecs, their count, control, its length, flags, msg_len. */
const messageHeaderWord = {
  iovecs: 4,
  iovecCount: 6,
  control: 8,
  controlLength: 10,
  flags: 12,
  length: 14,
} as const;
export const MESSAGE_HEADER_WORDS = 16;

/** struct iovec, in words of 32 bits: address, bytes. */
export const iovecWord = { address: 0, bytes: 2 } as const;
export const IOVEC_WORDS = 4;

/** Room for the control records that the kernel may add: a segment size is 24 bytes. */
const CONTROL_BYTES = 64;
const SEGMENT_RECORD_BYTES = 24;
const SOL_UDP = 17;
const UDP_SEGMENT = 103;
const UDP_GRO = 104;
const TWO_32 = 2 ** 32;

interface MessageBlockOptions {
  readonly messages: number;
  readonly iovecsPerMessage: number;
}

/** What messages of headers and parts have in common; the last part may be shorter. */
interface HeaderPairs {
  readonly count: number;
  readonly headerBytes: number;
  readonly payloadBytes: number;
  readonly lastPayloadBytes: number;
}

/** Arguments of sendmmsg and recvmmsg, laid out once: mmsghdr, iovec and control records. Hot path: no allocation. */
export class MessageBlock {
  readonly messages: number;
  readonly iovecsPerMessage: number;
  readonly #block: NativeBlock;
  readonly #words: Uint32Array;
  readonly #firstIovec: number;
  readonly #firstControl: number;

  constructor({ messages, iovecsPerMessage }: MessageBlockOptions) {
    this.messages = messages;
    this.iovecsPerMessage = iovecsPerMessage;
    this.#firstIovec = messages * MESSAGE_HEADER_WORDS;
    this.#firstControl = this.#firstIovec + messages * iovecsPerMessage * IOVEC_WORDS;
    this.#block = new NativeBlock(this.#firstControl * 4 + messages * CONTROL_BYTES);
    this.#words = this.#block.words;
    for (let message = 0; message < messages; message += 1) {
      const header = message * MESSAGE_HEADER_WORDS;
      const iovecs = this.#firstIovec + message * iovecsPerMessage * IOVEC_WORDS;
      this.#setAddress(header + messageHeaderWord.iovecs, this.#block.address + iovecs * 4);
      const control = this.#controlOf(message);
      this.#setAddress(header + messageHeaderWord.control, this.#block.address + control * 4);
      this.#words[control] = 18;
      this.#words[control + 2] = SOL_UDP;
      this.#words[control + 3] = UDP_SEGMENT;
    }
  }

  /** Address of the mmsghdr of a message, which the calls take. */
  addressOf(message: number): number {
    return this.#block.address + message * MESSAGE_HEADER_WORDS * 4;
  }

  setIovec(message: number, index: number, address: number, bytes: number): void {
    const at = this.#firstIovec + (message * this.iovecsPerMessage + index) * IOVEC_WORDS;
    const words = this.#words;
    words[at] = address;
    words[at + 1] = address / TWO_32;
    words[at + 2] = bytes;
  }

  /** All iovecs of a message of headers, from address `header` on, each before its part of the memory from `payload` on. */
  setPairs(message: number, pairs: HeaderPairs, header: number, payload: number): void {
    const { count, headerBytes, payloadBytes, lastPayloadBytes } = pairs;
    const last = 2 * (count - 1);
    const headerHigh = Math.floor(header / TWO_32);
    const payloadHigh = Math.floor(payload / TWO_32);
    const isPlain =
      Math.floor((header + count * headerBytes) / TWO_32) === headerHigh &&
      Math.floor((payload + count * payloadBytes) / TWO_32) === payloadHigh;
    if (isPlain) {
      // The low words alone differ here, and whole numbers of 32 bits are quick.
      const words = this.#words;
      let headerLow = (header - headerHigh * TWO_32) | 0;
      let payloadLow = (payload - payloadHigh * TWO_32) | 0;
      let at = this.#firstIovec + message * this.iovecsPerMessage * IOVEC_WORDS;
      for (let pair = 0; pair < count; pair += 1) {
        words[at] = headerLow;
        words[at + 1] = headerHigh;
        words[at + 2] = headerBytes;
        words[at + 4] = payloadLow;
        words[at + 5] = payloadHigh;
        words[at + 6] = payloadBytes;
        headerLow = (headerLow + headerBytes) | 0;
        payloadLow = (payloadLow + payloadBytes) | 0;
        at += 2 * IOVEC_WORDS;
      }
    } else {
      for (let pair = 0; pair < count; pair += 1) {
        this.setIovec(message, 2 * pair, header + pair * headerBytes, headerBytes);
        this.setIovec(message, 2 * pair + 1, payload + pair * payloadBytes, payloadBytes);
      }
    }
    this.setIovec(message, last + 1, payload + (count - 1) * payloadBytes, lastPayloadBytes);
    this.setIovecCount(message, 2 * count);
  }

  setIovecCount(message: number, count: number): void {
    this.#words[message * MESSAGE_HEADER_WORDS + messageHeaderWord.iovecCount] = count;
  }

  /** Prepares sending: the kernel cuts the message into datagrams of `bytes`; 0 sends it as one. */
  setSegmentBytes(message: number, bytes: number): void {
    this.#words[message * MESSAGE_HEADER_WORDS + messageHeaderWord.controlLength] =
      bytes === 0 ? 0 : SEGMENT_RECORD_BYTES;
    if (bytes !== 0) this.#words[this.#controlOf(message) + 4] = bytes;
  }

  /** Prepares receiving, before every call, because the kernel shortens what it was given. */
  expectControl(message: number): void {
    this.#words[message * MESSAGE_HEADER_WORDS + messageHeaderWord.controlLength] = CONTROL_BYTES;
  }

  /** Bytes of a received message. */
  lengthOf(message: number): number {
    return this.#words[message * MESSAGE_HEADER_WORDS + messageHeaderWord.length]!;
  }

  /** True if the message was longer than its iovecs. */
  isTruncated(message: number): boolean {
    return (this.#words[message * MESSAGE_HEADER_WORDS + messageHeaderWord.flags]! & MSG_TRUNC) !== 0;
  }

  /** Bytes of each of the datagrams that the kernel joined into this message, the last of which may be shorter. */
  segmentBytesOf(message: number): number {
    const control = this.#controlOf(message);
    const isJoined =
      this.#words[message * MESSAGE_HEADER_WORDS + messageHeaderWord.controlLength]! >= SEGMENT_RECORD_BYTES - 4 &&
      this.#words[control + 3] === UDP_GRO;
    return isJoined ? this.#words[control + 4]! : this.lengthOf(message);
  }

  #controlOf(message: number): number {
    return this.#firstControl + message * (CONTROL_BYTES / 4);
  }

  #setAddress(word: number, address: number): void {
    this.#words[word] = address;
    this.#words[word + 1] = address / TWO_32;
  }
}
