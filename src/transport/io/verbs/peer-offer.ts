// What two engines tell each other of their queue pairs before they join them. Whatever a peer says is checked here.
import { MAX_PATHS } from '../../../abi/transport-packet.ts';
import { integerField, textField } from '../../../meeting/frame-fields.ts';
import { protocolError } from '../../../meeting/frames.ts';

/** What a peer must know of a port to send to it. */
export interface PortName {
  /** 16 bytes in hexadecimal digits. */
  readonly gid: string;
  /** 0 over Ethernet. */
  readonly lid: number;
  readonly mtu: number;
}

/** The end of a path. */
export interface EndName {
  /** Of its queue pair. */
  readonly number: number;
  /** Of datagrams that come in. */
  readonly queueKey: number;
  /** Of the first packet that it sends. */
  readonly firstSequence: number;
}

export const SEQUENCES: number = 2 ** 24;
/** Keys with the highest bit set are for privileged users. */
export const QUEUE_KEYS: number = 2 ** 31;
const QUEUE_PAIRS = 2 ** 24;
const MAX_LID = 0xffff;
const [MIN_MTU, MAX_MTU] = [256, 4096];

interface PeerOffer {
  /** The ports of the peer's engine: path p goes to rail p modulo their number. */
  readonly rails: readonly PortName[];
  readonly ends: readonly EndName[];
}

/** What the peer's engine says of so many paths. Fails with WL_PROTOCOL. */
export function readOffer(offer: unknown, paths: number): PeerOffer {
  const frame = recordOf(offer);
  const count = countOf(offer);
  if (count !== paths) throw protocolError(`${count} queue pairs for ${paths} paths`);
  const ends = (frame['ends'] as readonly unknown[]).map((end): EndName => {
    const fields = recordOf(end);
    return {
      number: integerField(fields, 'number', QUEUE_PAIRS - 1),
      queueKey: integerField(fields, 'queueKey', QUEUE_KEYS - 1),
      firstSequence: integerField(fields, 'firstSequence', SEQUENCES - 1),
    };
  });
  return { rails: railsOf(frame).map(portOf), ends };
}

/** How many ends an offer names. Fails with WL_PROTOCOL. */
export function countOf(offer: unknown): number {
  const { ends } = recordOf(offer);
  if (Array.isArray(ends) && ends.length >= 1 && ends.length <= MAX_PATHS) return ends.length;
  throw protocolError('a greeting without queue pairs');
}

/** The addresses of the ports, by rail. Fails with WL_PROTOCOL. */
export function gidsOf(offer: unknown): readonly string[] {
  return railsOf(recordOf(offer)).map((rail) => gidOf(recordOf(rail)));
}

function railsOf(offer: Readonly<Record<string, unknown>>): readonly unknown[] {
  const { rails } = offer;
  if (Array.isArray(rails) && rails.length >= 1 && rails.length <= countOf(offer)) return rails;
  throw protocolError('a greeting without RDMA ports');
}

function portOf(rail: unknown): PortName {
  const fields = recordOf(rail);
  const mtu = integerField(fields, 'mtu', MAX_MTU);
  if (mtu < MIN_MTU || !Number.isInteger(Math.log2(mtu))) throw protocolError(`a greeting with an MTU of ${mtu}`);
  return { gid: gidOf(fields), mtu, lid: integerField(fields, 'lid', MAX_LID) };
}

function gidOf(rail: Readonly<Record<string, unknown>>): string {
  const gid = textField(rail, 'gid');
  if (/^[0-9a-f]{32}$/.test(gid)) return gid;
  throw protocolError('a greeting without the address of an RDMA port');
}

/**
 * A flow label for each pair of queue pairs, by the rule of the InfiniBand specification for RoCE v2. The device derives the
 * UDP source port from it, which is what switches tell paths by.
 */
export function flowLabel(own: number, remote: number): number {
  const product = BigInt(own) * BigInt(remote);
  return Number((product ^ (product >> 20n) ^ (product >> 40n)) & 0xf_ffffn);
}

function recordOf(value: unknown): Readonly<Record<string, unknown>> {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  throw protocolError('a greeting without what it says of queue pairs');
}
