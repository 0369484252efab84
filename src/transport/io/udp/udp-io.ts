// Packets over UDP: a socket per path on each side, a probe of the largest datagram that passes, the loop over the sockets.
import { MAX_PATHS } from '../../../abi/transport-packet.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { ControlChannel, ControlFrame } from '../../../meeting/control-channel.ts';
import { integerField } from '../../../meeting/frame-fields.ts';
import { protocolError } from '../../../meeting/frames.ts';
import type { PacketIoKind, PathEndpoint, PathOptions, PeerPaths } from '../packet-io-kind.ts';
import { DatagramProbe } from './datagram-probe.ts';
import { UdpLoop } from './udp-loop.ts';
import { UdpSocket } from './udp-socket.ts';

/** How long a probe of the largest size may take after the peer has sent it: probes cross within this where nothing is wrong. */
const PROBE_PATIENCE_MS = 200;
const MIN_SEGMENT_BYTES = 512;
const MAX_SEGMENT_BYTES = 65_472;
/** The kernel cuts a send into no more on every version. */
const MAX_CUTS = 64;

export const udp: PacketIoKind = {
  openLoop: (options) => new UdpLoop(options),
  openPaths: (channel, count, options) => new UdpPaths(channel, count, options),
  countOf: (offer) => portsOf(offer).length,
};

class UdpPaths implements PeerPaths {
  readonly #channel: ControlChannel;
  readonly #options: PathOptions;
  readonly #sockets: readonly UdpSocket[];
  readonly #first: UdpSocket;
  #cutsSends = false;

  constructor(channel: ControlChannel, count: number, options: PathOptions) {
    this.#channel = channel;
    this.#options = options;
    const sockets: UdpSocket[] = [];
    const { bufferBytes } = options;
    const open = (): UdpSocket => new UdpSocket({ host: channel.localAddress, bufferBytes });
    try {
      this.#first = open();
      sockets.push(this.#first);
      while (sockets.length < count) sockets.push(open());
    } catch (error) {
      for (const socket of sockets) socket[Symbol.dispose]();
      throw error;
    }
    this.#sockets = sockets;
  }

  get count(): number {
    return this.#sockets.length;
  }

  get offer(): ControlFrame {
    return { ports: this.#sockets.map(({ port }) => port) };
  }

  get cutsSends(): boolean {
    return this.#cutsSends;
  }

  get endpoint(): PathEndpoint {
    return { descriptors: this.#sockets.map(({ fd }) => fd), segments: this.#cutsSends ? MAX_CUTS : 1 };
  }

  connect(peerOffer: ControlFrame): void {
    const ports = portsOf(peerOffer);
    if (ports.length !== this.count) throw protocolError(`${ports.length} ports for ${this.count} paths`);
    for (const [path, socket] of this.#sockets.entries()) {
      socket.connect({ host: this.#channel.remoteAddress, port: ports[path]! });
    }
  }

  async agree(secret: bigint): Promise<number> {
    const channel = this.#channel;
    const options = this.#options;
    const probe = new DatagramProbe(this.#first, secret);
    const most = options.segmentBytes === 0 ? MAX_SEGMENT_BYTES : options.segmentBytes;
    const sent = probe.send(most);
    this.#cutsSends = options.segmentationOffload && probe.cutsSends();
    channel.send({ sent });
    const expected = integerField(await channel.receive('probes'), 'sent', 65_535);
    const arrived = await waitForProbe(probe, expected);
    channel.send({ arrived });
    const reached = integerField(await channel.receive('count of probes'), 'arrived', 65_535);
    const segmentBytes = Math.floor(Math.min(arrived, reached, most) / 8) * 8;
    if (segmentBytes >= MIN_SEGMENT_BYTES) return segmentBytes;
    const { host, port } = this.#first;
    throw new WeftlineError(
      'WL_TIMEOUT',
      `UDP packets do not pass between this host (${host} port ${port}) and ${channel.peer}, though TCP does: a firewall may drop them (of ${expected} bytes at most, ${arrived} arrived here and ${reached} there)`,
      { details: { host, port, peer: channel.peer, arrived, reached } },
    );
  }

  [Symbol.dispose](): void {
    for (const socket of this.#sockets) socket[Symbol.dispose]();
  }
}

async function waitForProbe(probe: DatagramProbe, expected: number): Promise<number> {
  const end = performance.now() + PROBE_PATIENCE_MS;
  for (;;) {
    const arrived = probe.receive();
    if (arrived >= expected || performance.now() >= end) return arrived;
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

function portsOf(frame: ControlFrame): readonly number[] {
  const ports = frame['ports'];
  const areGood = Array.isArray(ports) && ports.length >= 1 && ports.length <= MAX_PATHS && ports.every(isPort);
  if (areGood) return ports;
  throw protocolError('a greeting without ports');
}

function isPort(port: unknown): port is number {
  return typeof port === 'number' && Number.isInteger(port) && port > 0 && port < 65_536;
}
