// The ways to carry packets. A new one is a file that makes its PacketIoKind, and lines here.
import type { Settings } from '../../settings/settings.ts';
import type { PacketIoKind } from './packet-io-kind.ts';
import { udp } from './udp/udp-io.ts';
import type { verbs as verbsIos } from './verbs/verbs-io.ts';

/** Loaded where a transport uses it, because its modules are a third of those that the thread of an engine loads. */
let verbs: typeof verbsIos | undefined;

const packetIos = {
  udp: () => udp,
  verbs: ({ rdmaService }) => verbs?.[rdmaService],
} as const satisfies Record<Settings['transportIo'], (settings: Settings) => PacketIoKind | undefined>;

/** Loads what transportIo() returns; it must come first on each thread. */
export async function loadTransportIo(settings: Settings): Promise<PacketIoKind> {
  if (settings.transportIo === 'verbs') ({ verbs } = await import('./verbs/verbs-io.ts'));
  return transportIo(settings);
}

/** That of a transport with these settings. */
export function transportIo(settings: Settings): PacketIoKind {
  const kind = packetIos[settings.transportIo](settings);
  if (kind === undefined) throw new Error(`The code for packets over ${settings.transportIo} is not loaded`);
  return kind;
}
