// The ways to carry packets. A new one is a file that makes its PacketIoKind, and a line here.
import type { PacketIoKind } from './packet-io-kind.ts';
import { udp } from './udp/udp-io.ts';

const packetIos = { udp } as const satisfies Record<string, PacketIoKind>;

/** That of transports. */
export const transportIo: PacketIoKind = packetIos.udp;
