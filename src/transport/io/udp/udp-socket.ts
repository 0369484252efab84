// One UDP socket of a path: its buffers, whether it may fragment, and what its route allows.
import type { SocketAddress } from '../../../native/socket-address.ts';
import { isIPv4 } from 'node:net';
import {
  closeDescriptor,
  connectUdpSocket,
  getSocketOption,
  localPort,
  openUdpSocket,
  setSocketOption,
} from '../../../native/udp.ts';

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
