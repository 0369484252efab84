// Finds the largest datagram that reaches a peer, by sending some of each candidate size before the connection is used.
import { Block } from '../../../abi/layout.ts';
import { PROBE_MARK, transportProbe } from '../../../abi/transport-probe.ts';
import { MessageBlock } from '../../../native/message-block.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { receiveMessages, sendMessages } from '../../../native/udp.ts';
import type { UdpSocket } from './udp-socket.ts';

/** What fits where: jumbo frames, Ethernet, common tunnels, the least that IPv6 promises. */
const COMMON_SIZES = [8972, 1472, 1372, 1232];
/** Of each size, so that a lost packet does not decide. */
const COPIES = 3;
/** Two segments of a probe that asks whether the kernel cuts sends for this route. */
const CUT_SEGMENT_BYTES = 512;

export class DatagramProbe {
  readonly #socket: UdpSocket;
  readonly #memory: NativeBlock;
  readonly #probe: Block<keyof typeof transportProbe.offset>;
  readonly #messages = new MessageBlock({ messages: 1, iovecsPerMessage: 1 });
  readonly #secret: bigint;
  #largestArrived = 0;

  /** `socket` is connected to the peer. */
  constructor(socket: UdpSocket, secret: bigint) {
    this.#socket = socket;
    this.#secret = secret;
    this.#memory = new NativeBlock(65_536);
    this.#probe = new Block(transportProbe, this.#memory.bytes.buffer, this.#memory.bytes.byteOffset);
    this.#messages.setIovecCount(0, 1);
  }

  /** Sends probes of every size up to `most`. Returns the largest that left this host. */
  send(most: number): number {
    const largest = Math.min(most, this.#socket.largestDatagram);
    const sizes = [largest, ...COMMON_SIZES.filter((bytes) => bytes < largest)];
    let largestSent = 0;
    for (const bytes of sizes) {
      for (let copy = 0; copy < COPIES; copy += 1) {
        if (this.#sendOne(bytes, 0)) largestSent = Math.max(largestSent, bytes);
      }
    }
    return largestSent;
  }

  /** True if the kernel cuts one send into several datagrams on this route. */
  cutsSends(): boolean {
    return this.#sendOne(CUT_SEGMENT_BYTES, 2 * CUT_SEGMENT_BYTES);
  }

  /** Looks at what has arrived so far; returns the largest probe of the peer, 0 for none. */
  receive(): number {
    const { bytes } = this.#memory;
    for (;;) {
      this.#messages.setIovec(0, 0, this.#memory.address, bytes.length);
      this.#messages.expectControl(0);
      if (receiveMessages(this.#socket.fd, this.#messages.addressOf(0), 1) !== 1) return this.#largestArrived;
      const length = this.#messages.segmentBytesOf(0);
      const isOurs =
        length >= transportProbe.size &&
        this.#probe.get('mark') === PROBE_MARK &&
        this.#probe.get('secretLow') === Number(this.#secret & 0xffff_ffffn) &&
        this.#probe.get('secretHigh') === Number(this.#secret >> 32n);
      if (isOurs && this.#probe.get('bytes') === length) this.#largestArrived = Math.max(this.#largestArrived, length);
    }
  }

  #sendOne(bytes: number, total: number): boolean {
    this.#memory.bytes.fill(0, 0, Math.max(bytes, total));
    this.#probe.set('mark', PROBE_MARK);
    this.#probe.set('bytes', bytes);
    this.#probe.set('secretLow', Number(this.#secret & 0xffff_ffffn));
    this.#probe.set('secretHigh', Number(this.#secret >> 32n));
    this.#messages.setIovec(0, 0, this.#memory.address, Math.max(bytes, total));
    this.#messages.setSegmentBytes(0, total === 0 ? 0 : bytes);
    return sendMessages(this.#socket.fd, this.#messages.addressOf(0), 1) === 1;
  }
}
