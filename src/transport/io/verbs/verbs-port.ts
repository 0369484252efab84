// The ports of RDMA devices that packets go by, and one of them opened for an engine alone.
import { MAX_PATHS } from '../../wire/packet-layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { integerField, protocolError, textField } from '../../../meeting/frames.ts';
import { localFiles } from '../../../native/file-probe.ts';
import { CompletionChannel } from '../../../native/verbs/completion-queue.ts';
import { ProtectionDomain, VerbsContext } from '../../../native/verbs/context.ts';
import type { PortAttributes } from '../../../native/verbs/facts.ts';
import type { VerbsPath } from '../../../native/verbs/queue-pair.ts';
import { hostInterfaces } from '../../../rails/rail-list.ts';
import { chooseRdma, rdmaHardware, type RdmaRail } from '../../../rails/rdma-choice.ts';
import type { Settings } from '../../../settings/settings.ts';

export class VerbsPort implements Disposable {
  readonly rail: RdmaRail;
  readonly context: VerbsContext;
  readonly domain: ProtectionDomain;
  /** The channel by which a thread that sleeps hears of completions. */
  readonly channel: CompletionChannel;
  readonly attributes: PortAttributes;
  readonly #settings: Settings;

  constructor(rail: RdmaRail, settings: Settings) {
    this.#settings = settings;
    this.rail = rail;
    this.context = VerbsContext.open(this.rail.name);
    try {
      this.domain = new ProtectionDomain(this.context);
      this.channel = new CompletionChannel(this.context);
      this.attributes = this.context.queryPort(this.rail.port);
    } catch (error) {
      this.context.close();
      throw error;
    }
  }

  get name(): PortName {
    const isInfiniBand = this.attributes.linkLayer === 'InfiniBand';
    return {
      gid: this.rail.gid.gid.replaceAll(':', ''),
      lid: isInfiniBand ? this.attributes.lid : 0,
      mtu: this.rail.mtuBytes,
    };
  }

  /** `flowLabel`: 20 bits, by which the switches tell this path from others to the same port. */
  pathTo(peer: PortName, flowLabel: number): VerbsPath {
    return {
      port: this.rail.port,
      gidIndex: this.rail.gid.index,
      remoteGid: Buffer.from(peer.gid, 'hex'),
      remoteLid: peer.lid,
      trafficClass: this.#settings.rdmaTrafficClass,
      flowLabel,
    };
  }

  /** Closes everything that was made from it. */
  [Symbol.dispose](): void {
    this.context.close();
  }
}

/**
 * The ports that connections use: all of a list in the setting rdmaDevices, else the best one. Fails with WL_UNSUPPORTED where
 * none can be used, with WL_CONFIG for settings that name none.
 */
export function packetRails(settings: Settings): readonly RdmaRail[] {
  const devices = rdmaHardware(localFiles());
  const { rails, others } = chooseRdma({ devices, gpus: [], interfaces: hostInterfaces() }, settings);
  if (rails.length > 0) return settings.rdmaDevices.trim() === '' ? rails.slice(0, 1) : rails;
  const reasons = others.map(
    ({ name, port, reason }) => `${name}${port === undefined ? '' : ` port ${port}`}: ${reason}`,
  );
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `Packets cannot go over verbs: ${reasons.length === 0 ? 'this host has no RDMA device' : reasons.join('; ')}; "weftline doctor --rdma" says more, and WEFTLINE_TRANSPORT_IO=udp needs no RDMA`,
  );
}

// What two engines tell each other of their queue pairs before they join them. Whatever a peer says is checked here.

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
  /** Number of its queue pair. */
  readonly number: number;
  /** Key of datagrams that come in. */
  readonly queueKey: number;
  /** Number of the first packet that it sends. */
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
export function flowLabelOf(own: number, remote: number): number {
  const product = BigInt(own) * BigInt(remote);
  return Number((product ^ (product >> 20n) ^ (product >> 40n)) & 0xf_ffffn);
}

function recordOf(value: unknown): Readonly<Record<string, unknown>> {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  throw protocolError('a greeting without what it says of queue pairs');
}
