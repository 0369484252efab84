// A network interface whose other end is this process: it reads the IP packets that the kernel sends, and writes those that it receives.
import { closeSync, openSync, read, write } from 'node:fs';
import { loadKoffi } from '#lib/native/library.js';

const TUNSETIFF = 0x4004_54ca;
const IFF_TUN = 1;
/** Nothing but the packet itself. */
const IFF_NO_PI = 0x1000;
const IFREQ_BYTES = 40;
const NAME_BYTES = 16;
const MAX_PACKET_BYTES = 65_536;

export class TunDevice implements Disposable {
  readonly name: string;
  readonly #fd: number;
  #isClosed = false;

  /** Needs root, and makes the interface in the network namespace of this process. */
  constructor(name: string) {
    this.name = name;
    this.#fd = openSync('/dev/net/tun', 'r+');
    const request = Buffer.alloc(IFREQ_BYTES);
    request.write(name, 0, NAME_BYTES - 1, 'latin1');
    request.writeUInt16LE(IFF_TUN | IFF_NO_PI, NAME_BYTES);
    const ioctl = loadKoffi().load(null).func('int ioctl(int fd, unsigned long request, void *argument)');
    if (ioctl(this.#fd, TUNSETIFF, request) !== 0) throw new Error(`Cannot make the interface ${name}`);
  }

  /** Calls back with each packet, in order. The bytes are the callee's. */
  onPacket(take: (packet: Buffer) => void): void {
    const buffer = Buffer.alloc(MAX_PACKET_BYTES);
    const next = (): void =>
      read(this.#fd, buffer, 0, buffer.length, null, (error, bytes) => {
        if (this.#isClosed) return;
        if (error === null) take(Buffer.from(buffer.subarray(0, bytes)));
        // While the interface is down there is nothing to read.
        if (error === null) next();
        else setTimeout(next, 10);
      });
    next();
  }

  send(packet: Buffer): void {
    // What the kernel does not take is lost, as on a wire.
    if (!this.#isClosed) write(this.#fd, packet, 0, packet.length, null, () => {});
  }

  [Symbol.dispose](): void {
    this.#isClosed = true;
    closeSync(this.#fd);
  }
}
