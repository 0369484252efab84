// What a bad network does to IP packets: loses, doubles, delays and changes them, by chances that a seed determines.
import { Random } from '../fuzz/random.ts';

export interface Impairment {
  /** Chances per packet. */
  readonly loss?: number;
  readonly duplication?: number;
  readonly reordering?: number;
  readonly corruption?: number;
  /** UDP's checksum is made right again after a change, so that the kernel does not drop the packet. */
  readonly repair?: boolean;
  /** Also those of TCP. By default only UDP suffers. */
  readonly tcp?: boolean;
  /** Most milliseconds by which a late packet is late. */
  readonly lateMs?: number;
}

export interface ImpairmentCounts {
  packets: number;
  lost: number;
  doubled: number;
  late: number;
  changed: number;
}

/** When a packet goes on; several entries are several copies. */
export interface Passage {
  readonly packet: Buffer;
  readonly afterMs: number;
}

const UDP = 17;
const TCP = 6;
const UDP_HEADER_BYTES = 8;
const LATE_MS = 3;

export class Network {
  readonly counts: ImpairmentCounts = { packets: 0, lost: 0, doubled: 0, late: 0, changed: 0 };
  readonly #random: Random;
  #impairment: Impairment = {};

  constructor(seed: number) {
    this.#random = new Random(seed);
  }

  set(impairment: Impairment): void {
    this.#impairment = impairment;
  }

  pass(packet: Buffer): readonly Passage[] {
    const { loss = 0, duplication = 0, reordering = 0, corruption = 0 } = this.#impairment;
    if (!this.#suffers(packet)) return [{ packet, afterMs: 0 }];
    const random = this.#random;
    this.counts.packets++;
    if (random.chance(loss)) {
      this.counts.lost++;
      return [];
    }
    const copies = random.chance(duplication) ? 2 : 1;
    if (copies === 2) this.counts.doubled++;
    return Array.from({ length: copies }, () => {
      const isLate = random.chance(reordering);
      if (isLate) this.counts.late++;
      const afterMs = isLate ? random.next() * (this.#impairment.lateMs ?? LATE_MS) : 0;
      return { packet: random.chance(corruption) ? this.#change(packet) : packet, afterMs };
    });
  }

  #suffers(packet: Buffer): boolean {
    if (packet.length < 20 || (packet[0] as number) >>> 4 !== 4) return false;
    const protocol = packet[9];
    return protocol === UDP || (protocol === TCP && this.#impairment.tcp === true);
  }

  /**
   * Changes one bit of what UDP or TCP carries, which their checksums always find; up to three where they are repaired. Two bits
   * of the same place in words of 16 can leave the sum as it was.
   */
  #change(packet: Buffer): Buffer {
    const header = ((packet[0] as number) & 15) * 4;
    const isFirst = (packet.readUInt16BE(6) & 0x1fff) === 0;
    const start = header + (isFirst && packet[9] === UDP ? UDP_HEADER_BYTES : 0);
    if (packet.length <= start) return packet;
    const changed = Buffer.from(packet);
    const bits = this.#impairment.repair === true ? 1 + this.#random.below(3) : 1;
    for (let bit = 0; bit < bits; bit++) {
      const at = start + this.#random.below(packet.length - start);
      changed[at] = (changed[at] as number) ^ (1 << this.#random.below(8));
    }
    this.counts.changed++;
    const isWhole = isFirst && (packet.readUInt16BE(6) & 0x2000) === 0;
    if (this.#impairment.repair === true && isWhole && packet[9] === UDP) repairUdp(changed, header);
    return changed;
  }
}

/** Writes the checksum of a UDP packet over IPv4 anew. */
export function repairUdp(packet: Buffer, header: number): void {
  const length = packet.readUInt16BE(header + 4);
  packet.writeUInt16BE(0, header + 6);
  let sum = UDP + length;
  for (let at = 12; at < 20; at += 2) sum += packet.readUInt16BE(at);
  const end = Math.min(packet.length, header + length);
  for (let at = header; at < end; at += 2) sum += at + 1 < end ? packet.readUInt16BE(at) : (packet[at] as number) << 8;
  while (sum > 0xffff) sum = (sum & 0xffff) + Math.floor(sum / 0x1_0000);
  packet.writeUInt16BE(sum === 0xffff ? 0xffff : ~sum & 0xffff, header + 6);
}
