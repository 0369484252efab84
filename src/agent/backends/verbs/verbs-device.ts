// The port of an RDMA device that a backend uses, and what is made of it for all links: domain, completion queues, events.
import { WeftlineError } from '../../../core/errors.ts';
import { isLogged, log } from '../../../core/log.ts';
import { localFiles } from '../../../native/file-probe.ts';
import { AsyncEvents } from '../../../native/verbs/async-events.ts';
import { CompletionChannel } from '../../../native/verbs/completion-queue.ts';
import { VerbsContext } from '../../../native/verbs/context.ts';
import type { VerbsPath } from '../../../native/verbs/path.ts';
import { ProtectionDomain } from '../../../native/verbs/protection-domain.ts';
import { hostInterfaces } from '../../../rails/host-interfaces.ts';
import { chooseRdma, type RdmaChoice, type RdmaRail } from '../../../rails/rdma-choice.ts';
import { rdmaHardware } from '../../../rails/rdma-devices.ts';
import type { Settings } from '../../../settings/settings.ts';
import { CompletionPool } from './completion-pool.ts';

/** How a port is named to peers. */
export interface PortAddress {
  /** 32 hexadecimal digits. */
  readonly gid: string;
  readonly lid: number;
  readonly linkLayer: string;
  readonly mtuBytes: number;
  /** For errors: "rxe0 port 1". */
  readonly name: string;
}

/** A single request may be longer nowhere; smaller ones let other transfers in, and the ends of cancelled ones come sooner. */
const MAX_CHUNK_BYTES = 1 << 20;

export class VerbsDevice implements Disposable {
  readonly rail: RdmaRail;
  readonly context: VerbsContext;
  readonly domain: ProtectionDomain;
  readonly channel: CompletionChannel;
  readonly completions: CompletionPool;
  readonly events: AsyncEvents;
  readonly port: PortAddress;
  /** Most bytes of one request. */
  readonly chunkBytes: number;
  readonly #trafficClass: number;

  /** The first of the ports that may be used. Fails with WL_UNSUPPORTED if there is none, WL_CONFIG for wrong settings. */
  static open(settings: Settings): { readonly device: VerbsDevice; readonly choice: RdmaChoice } {
    const hardware = { devices: rdmaHardware(localFiles()), gpus: [], interfaces: hostInterfaces() };
    const choice = chooseRdma(hardware, settings);
    const [rail] = choice.rails;
    if (rail === undefined) throw noPort(choice);
    if (isLogged('agent', 'debug')) {
      log('agent', 'debug', `RDMA by ${rail.name} port ${rail.port} (${rail.gidReason}): ${choice.reason ?? ''}`);
    }
    return { device: new VerbsDevice(rail, settings), choice };
  }

  private constructor(rail: RdmaRail, settings: Settings) {
    this.rail = rail;
    this.context = VerbsContext.open(rail.name);
    try {
      const { lid, linkLayer, activeMtuBytes, maxMsgSz } = this.context.queryPort(rail.port);
      this.domain = new ProtectionDomain(this.context);
      this.channel = new CompletionChannel(this.context);
      this.completions = new CompletionPool(this.context, this.channel);
      this.events = new AsyncEvents(this.context);
      const name = `${rail.name} port ${rail.port}`;
      this.port = { gid: rail.gid.gid.replaceAll(':', ''), lid, linkLayer, mtuBytes: activeMtuBytes, name };
      this.chunkBytes = Math.min(MAX_CHUNK_BYTES, maxMsgSz);
      this.#trafficClass = settings.rdmaTrafficClass;
    } catch (error) {
      this.context.close();
      throw error;
    }
  }

  pathTo({ gid, lid }: PortAddress): VerbsPath {
    const { port, gid: own } = this.rail;
    const remoteGid = Buffer.from(gid, 'hex');
    return { port, gidIndex: own.index, remoteGid, remoteLid: lid, trafficClass: this.#trafficClass };
  }

  /** Closes all that was made of the device: afterwards it touches no memory of this process. */
  [Symbol.dispose](): void {
    this.context.close();
  }
}

function noPort({ others }: RdmaChoice): WeftlineError {
  const reasons = others.map(
    ({ name, port, reason }) => `${name}${port === undefined ? '' : ` port ${port}`}: ${reason}`,
  );
  const why = reasons.length === 0 ? 'it has no RDMA device' : reasons.join('; ');
  return new WeftlineError('WL_UNSUPPORTED', `This host has no port for RDMA: ${why}`, { details: { others } });
}
