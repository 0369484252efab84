// The PacketIo over UDP sockets: bursts become segmentation-offload sends without a copy. Hot path: no allocation.
import { isIPv4 } from 'node:net';
import { addressOf, NativeBlock } from '../../../native/library.ts';
import {
  closeDescriptor,
  connectUdpSocket,
  getSocketOption,
  localPort,
  MessageBlock,
  openUdpSocket,
  sendMessages,
  setSocketOption,
  type SocketAddress,
} from '../../../native/udp.ts';
import { waitWritable } from '../../../native/readiness.ts';
import { type Burst, type PacketIo, type PlacementRun, placeNative } from '../packet-io.ts';

/** The socket of one path to one peer, as the engine's thread sees it. */
export interface PathSocket {
  readonly fd: number;
  readonly peer: number;
  /** Most segments that the kernel cuts one send into; 1 if it must not. */
  segments: number;
}

/** Counters of what the kernel did not take. */
export interface SendFailures {
  /** Bursts given up because the socket stayed full, or the device had no room: to the protocol they are lost. */
  full: number;
  /** Datagrams that exceed what the route takes now. */
  tooLarge: number;
  /** The peer's port is closed. */
  refused: number;
  /** Anything else. */
  other: number;
}

const ARENA_BYTES = 512 * 1024;
const DATA_MESSAGES = 64;
const URGENT_MESSAGES = 256;
/** Older kernels cut a send into no more. */
const MAX_SEGMENTS = 64;
const FULL_WAIT_MICROSECONDS = 2_000;
const [EAGAIN, ENOBUFS, EMSGSIZE, ECONNREFUSED] = [11, 105, 90, 111];
/** Devices without checksum offload refuse to cut with EIO, old kernels do not know the record. */
const [EIO, EINVAL] = [5, 22];

/** Messages in one block, each with the socket it goes to, sent in the order they came. */
class Outbox {
  readonly block: MessageBlock;
  readonly sockets: PathSocket[] = [];
  count = 0;

  constructor(messages: number, iovecsPerMessage: number) {
    this.block = new MessageBlock({ messages, iovecsPerMessage });
  }
}

export class UdpPacketIo implements PacketIo {
  readonly arena: Uint8Array;
  readonly burstBytes: number = MAX_DATAGRAM_BYTES;
  readonly failures: SendFailures = { full: 0, tooLarge: 0, refused: 0, other: 0 };
  readonly #arenaAddress: number;
  readonly #peers: (readonly PathSocket[] | undefined)[] = [];
  readonly #data = new Outbox(DATA_MESSAGES, 2 * MAX_SEGMENTS);
  /** Bursts that the kernel must not cut, a message for each of their packets. */
  readonly #plain = new Outbox(4 * MAX_SEGMENTS, 2);
  readonly #urgent = new Outbox(URGENT_MESSAGES, 2);
  readonly #receiveBytes: Uint8Array;
  readonly #receiveAddress: number;
  burstSegments: number = 1;
  /** True if some sockets take fewer segments than bursts may have. */
  #isMixed = false;
  #hasSockets = false;

  readonly #onRefused: (peer: number) => void;

  /** `received` is the memory that placed payload comes from. `onRefused` hears of peers whose port is closed. */
  constructor(received: NativeBlock, onRefused: (peer: number) => void) {
    const arena = new NativeBlock(ARENA_BYTES);
    this.arena = arena.bytes;
    this.#arenaAddress = arena.address;
    this.#receiveBytes = received.bytes;
    this.#receiveAddress = received.address;
    this.#onRefused = onRefused;
  }

  addressOf(bytes: Uint8Array): number {
    return Number(addressOf(bytes));
  }

  /** The sockets of a peer, by path. `peer` is a small number that no other peer has. */
  setPeer(peer: number, sockets: readonly PathSocket[]): void {
    this.#peers[peer] = sockets;
    for (const { segments } of sockets) {
      if (this.#hasSockets && segments !== this.burstSegments) this.#isMixed = true;
      this.burstSegments = Math.max(this.burstSegments, segments);
      this.#hasSockets = true;
    }
  }

  removePeer(peer: number): void {
    this.#peers[peer] = undefined;
  }

  room(): number {
    const room = Math.min(DATA_MESSAGES - this.#data.count, URGENT_MESSAGES - this.#urgent.count);
    if (!this.#isMixed) return room;
    return Math.min(room, Math.floor((this.#plain.block.messages - this.#plain.count) / MAX_SEGMENTS));
  }

  send(burst: Burst): void {
    const socket = this.#peers[burst.peer]?.[burst.path];
    if (socket === undefined) return;
    if (burst.count > socket.segments) this.#addPlain(socket, burst);
    else this.#addMessage(burst.urgent ? this.#urgent : this.#data, socket, burst);
  }

  flush(): void {
    this.#sendAll(this.#urgent);
    this.#sendAll(this.#data);
    this.#sendAll(this.#plain);
  }

  place(run: PlacementRun): void {
    placeNative(run, this.#receiveBytes, this.#receiveAddress);
  }

  /** One message; the kernel cuts it into the burst's packets. */
  #addMessage(outbox: Outbox, socket: PathSocket, burst: Burst): void {
    const { block } = outbox;
    const message = outbox.count;
    const { count, headerBytes, region } = burst;
    const header = this.#arenaAddress + burst.headerOffset;
    outbox.sockets[message] = socket;
    outbox.count = message + 1;
    block.setSegmentBytes(message, count === 1 ? 0 : headerBytes + burst.payloadBytes);
    if (region === undefined) {
      block.setIovec(message, 0, header, count * headerBytes);
      block.setIovecCount(message, 1);
      return;
    }
    block.setPairs(message, burst, header, region.address + burst.payloadOffset);
  }

  #addPlain(socket: PathSocket, burst: Burst): void {
    const outbox = this.#plain;
    const { count, headerOffset, headerBytes, region } = burst;
    for (let packet = 0; packet < count; packet += 1) {
      const message = outbox.count + packet;
      outbox.sockets[message] = socket;
      outbox.block.setIovec(message, 0, this.#arenaAddress + headerOffset + packet * headerBytes, headerBytes);
      outbox.block.setIovecCount(message, region === undefined ? 1 : 2);
      if (region === undefined) continue;
      const payload = region.address + burst.payloadOffset + packet * burst.payloadBytes;
      const bytes = packet === count - 1 ? burst.lastPayloadBytes : burst.payloadBytes;
      outbox.block.setIovec(message, 1, payload, bytes);
    }
    outbox.count += count;
  }

  #sendAll(outbox: Outbox): void {
    const { sockets, count } = outbox;
    let first = 0;
    let hasWaited = false;
    while (first < count) {
      const socket = sockets[first] as PathSocket;
      let end = first + 1;
      while (end < count && sockets[end] === socket) end += 1;
      const sent = sendMessages(socket.fd, outbox.block.addressOf(first), end - first);
      if (sent > 0) {
        first += sent;
      } else if (sent === -EAGAIN && !hasWaited) {
        hasWaited = true;
        waitWritable(socket.fd, FULL_WAIT_MICROSECONDS);
      } else {
        this.#giveUp(socket, -sent);
        first += 1;
      }
    }
    outbox.count = 0;
  }

  /** The burst is lost; the protocol sends it again. */
  #giveUp(socket: PathSocket, errno: number): void {
    if (errno === EAGAIN || errno === ENOBUFS) this.failures.full += 1;
    else if (errno === EMSGSIZE) this.failures.tooLarge += 1;
    else if (errno === ECONNREFUSED) this.failures.refused += 1;
    else this.failures.other += 1;
    if (errno === ECONNREFUSED) this.#onRefused(socket.peer);
    if (errno !== EIO && errno !== EINVAL) return;
    socket.segments = 1;
    this.#isMixed = true;
  }
}

// One UDP socket of a path: its buffers, whether it may fragment, and what its route allows.

/** The most a UDP datagram carries over IPv4, which the kernel takes for IPv6 as well when it segments. */
export const MAX_DATAGRAM_BYTES = 65_507;
const IP_AND_UDP_BYTES = { v4: 28, v6: 48 };
const NEVER_FRAGMENT = 2;

interface UdpSocketOptions {
  /** A numeric address of this host. */
  readonly host: string;
  /** Any by default. */
  readonly port?: number;
  /** Asked of the kernel for each direction; it may grant less (`net.core.rmem_max`, `wmem_max`). */
  readonly bufferBytes: number;
}

export class UdpSocket implements Disposable {
  readonly fd: number;
  readonly host: string;
  readonly port: number;
  /** What the kernel granted for receiving, its own bookkeeping included. */
  readonly receiveBufferBytes: number;
  /** True if the kernel joins neighbouring datagrams of one size into one receive. */
  readonly receiveOffload: boolean;

  constructor({ host, port = 0, bufferBytes }: UdpSocketOptions) {
    this.fd = openUdpSocket({ host, port });
    this.host = host;
    this.port = localPort(this.fd);
    // Beyond the limit of the system where this process may, up to the limit elsewhere.
    if (!setSocketOption(this.fd, 'receiveBufferForce', bufferBytes)) {
      setSocketOption(this.fd, 'receiveBuffer', bufferBytes);
    }
    if (!setSocketOption(this.fd, 'sendBufferForce', bufferBytes)) setSocketOption(this.fd, 'sendBuffer', bufferBytes);
    this.receiveBufferBytes = getSocketOption(this.fd, 'receiveBuffer') ?? bufferBytes;
    setSocketOption(this.fd, isIPv4(host) ? 'mtuDiscoverV4' : 'mtuDiscoverV6', NEVER_FRAGMENT);
    this.receiveOffload = setSocketOption(this.fd, 'udpReceiveOffload', 1);
  }

  /** The socket receives from this peer alone afterwards; a peer whose port is closed is then noticed by the kernel. */
  connect(peer: SocketAddress): void {
    connectUdpSocket(this.fd, peer);
  }

  /** The largest datagram that the route to the connected peer takes, as far as this host knows. */
  get largestDatagram(): number {
    const v4 = isIPv4(this.host);
    const mtu = getSocketOption(this.fd, v4 ? 'mtuV4' : 'mtuV6') ?? 1500;
    return Math.min(MAX_DATAGRAM_BYTES, mtu - (v4 ? IP_AND_UDP_BYTES.v4 : IP_AND_UDP_BYTES.v6));
  }

  [Symbol.dispose](): void {
    closeDescriptor(this.fd);
  }
}
