// The ways to carry packets. A new one is a file that makes its PacketIoKind, and a line here.
import type { Settings } from '../../settings/settings.ts';
import type { PacketIoKind } from './packet-io-kind.ts';
import { udp } from './udp/udp-io.ts';
import { verbs } from './verbs/verbs-io.ts';

const packetIos = {
  udp: () => udp,
  verbs: ({ rdmaService }) => verbs[rdmaService],
} as const satisfies Record<Settings['transportIo'], (settings: Settings) => PacketIoKind>;

/** That of a transport with these settings. */
export function transportIo(settings: Settings): PacketIoKind {
  return packetIos[settings.transportIo](settings);
}
