// The ports of RDMA devices that packets go by, and one of them opened for an engine alone.
import { WeftlineError } from '../../../core/errors.ts';
import { localFiles } from '../../../native/file-probe.ts';
import { CompletionChannel } from '../../../native/verbs/completion-queue.ts';
import { VerbsContext } from '../../../native/verbs/context.ts';
import type { PortAttributes } from '../../../native/verbs/facts.ts';
import type { VerbsPath } from '../../../native/verbs/path.ts';
import { ProtectionDomain } from '../../../native/verbs/protection-domain.ts';
import { hostInterfaces } from '../../../rails/rail-list.ts';
import { chooseRdma, type RdmaRail } from '../../../rails/rdma-choice.ts';
import { rdmaHardware } from '../../../rails/rdma-devices.ts';
import type { Settings } from '../../../settings/settings.ts';
import type { PortName } from './peer-offer.ts';

export class VerbsPort implements Disposable {
  readonly rail: RdmaRail;
  readonly context: VerbsContext;
  readonly domain: ProtectionDomain;
  /** By which a thread that sleeps hears of completions. */
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
