// The agent's backend over UCX: meets peers, registers memory, takes in what its worker has found out.
import { randomBytes } from 'node:crypto';
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import type { ControlChannel } from '../../../meeting/control-channel.ts';
import { credentialsOf } from '../../../meeting/credentials.ts';
import { MeetingListener } from '../../../meeting/listener.ts';
import { openProcess, startOfProcess } from '../../../native/process-descriptor.ts';
import { openUcx } from '../../../native/ucx.ts';
import { hostIdentity } from '../../../world/host-identity.ts';
import type { AgentMemory, MemoryKind } from '../../agent-memory.ts';
import type { Backend, BackendContext, BackendPeer, BackendRegion, ConnectOptions } from '../../backend.ts';
import { decodeUcxAddress, encodeUcxAddress } from './ucx-info.ts';
import { UcxDriver } from './ucx-driver.ts';
import { UcxDrivers } from './ucx-drivers.ts';
import { UcxLink } from './ucx-link.ts';
import { acceptUcxPeer, type UcxMeeting, type UcxSelf, connectUcxPeer } from './ucx-meeting.ts';
import { UcxRegion } from './ucx-region.ts';
import { packetSpinUs } from '../../../threads/spin-time.ts';
import { chooseTransports, localSurroundings, type UcxTransports } from './ucx-transports.ts';

/** Fails with WL_UNSUPPORTED without libucp, with WL_CONFIG for transports or addresses that are not allowed. */
export async function createBackend(context: BackendContext): Promise<Backend<'ucx'>> {
  // Before anything is made that would have to be closed.
  openUcx();
  return UcxBackend.open(context);
}

/** For a link that is being made: its worker, and what its peer is told of it. */
interface Place {
  readonly driver: UcxDriver;
  readonly self: Pick<UcxSelf, 'link' | 'address'>;
  readonly giveBack: () => void;
}

export class UcxBackend implements Backend<'ucx'> {
  readonly name = 'ucx';
  readonly #drivers: UcxDrivers;
  readonly #context: BackendContext;
  #connectionInfo: Uint8Array = new Uint8Array(0);
  #listener: MeetingListener | undefined;
  readonly #isMemoryOnly: boolean;
  readonly #self: Omit<UcxSelf, 'link' | 'address'>;
  readonly #links: UcxLink[] = [];
  #isHoldingBack = false;
  #closing: Promise<void> | undefined;

  static async open(context: BackendContext): Promise<UcxBackend> {
    const { ownThread, wake, settings } = context;
    const transports = chooseTransports(localSurroundings(context.host));
    const options = { ownThread, wake, spinUs: packetSpinUs(settings), transports, patienceMs: settings.timeoutMs };
    const drivers = new UcxDrivers(() => new UcxDriver(options), !transports.isMemoryOnly);
    try {
      const backend = new UcxBackend(context, { drivers, transports });
      const listener = await MeetingListener.open({
        target: { host: context.host, port: 0 },
        credentials: backend.#self.credentials,
        settings,
        serve: (channel) => backend.#welcome(channel),
      });
      listener.unref();
      backend.#listener = listener;
      backend.#connectionInfo = encodeUcxAddress({ host: context.host, port: listener.port });
      return backend;
    } catch (error) {
      await drivers.close();
      throw error;
    }
  }

  private constructor(
    context: BackendContext,
    { drivers, transports }: { drivers: UcxDrivers; transports: UcxTransports },
  ) {
    this.#context = context;
    this.#drivers = drivers;
    this.#isMemoryOnly = transports.isMemoryOnly;
    const { agentName: name, incarnation, token } = context;
    this.#self = {
      credentials: credentialsOf(token),
      name,
      incarnation,
      host: hostIdentity(),
      process: process.pid,
      started: startOfProcess(process.pid) ?? '',
    };
  }

  get connectionInfo(): Uint8Array {
    return this.#connectionInfo;
  }

  whyNotMemory(memory: AgentMemory): string | undefined {
    return this.whyNotRemote(memory.kind);
  }

  whyNotPeer(peer: BackendPeer): string | undefined {
    if (decodeUcxAddress(peer.connectionInfo) === undefined) return 'its address is not understood';
    if (!this.#isMemoryOnly || peer.host === this.#self.host) return undefined;
    return `${peer.name} is on another host, and UCX uses shared memory alone here: give Agent.create a host that peers can reach, or set UCX_TLS`;
  }

  whyNotRemote(kind: MemoryKind): string | undefined {
    return kind === 'host' ? undefined : 'it moves host memory only';
  }

  async register(memory: AgentMemory): Promise<BackendRegion> {
    const why = this.whyNotMemory(memory);
    if (why !== undefined) throw new WeftlineError('WL_UNSUPPORTED', `The backend ucx cannot use the memory: ${why}`);
    const { address, bytes } = memory;
    const key = randomBytes(4).readUInt32LE();
    const { number, packed } = this.#drivers.register({ address, bytes, key, view: memory.view });
    const endRemoteUse = (): Promise<void> => this.#release(number);
    return new UcxRegion(
      { number, key, address, packed },
      { endRemoteUse, forget: () => this.#drivers.forget(number) },
    );
  }

  #release(region: number): Promise<void> {
    return this.#drivers.release(region, (driver) => {
      for (const link of this.#links.filter((known) => known.driver === driver)) link.endIfUses(region);
    });
  }

  async connect(peer: BackendPeer, options: ConnectOptions): Promise<UcxLink> {
    const address = decodeUcxAddress(peer.connectionInfo);
    if (address === undefined) throw invalidArgument('connectionInfo', peer.name, 'that of a ucx backend');
    const place = this.#reserve();
    try {
      return this.#establish(place, await connectUcxPeer({ peer, address }, { ...this.#self, ...place.self }, options));
    } catch (error) {
      place.giveBack();
      throw error;
    }
  }

  poll(): boolean {
    const hasNews = this.#drivers.look();
    if (!hasNews && !this.#isHoldingBack) return false;
    const links = this.#links;
    let isAwaited = false;
    this.#isHoldingBack = false;
    for (let at = links.length - 1; at >= 0; at--) {
      const link = links[at] as UcxLink;
      link.look(this.#context);
      if (link.isHoldingBack) this.#isHoldingBack = true;
      if (link.owesRoom) isAwaited = true;
    }
    if (isAwaited) this.#drivers.look();
    return hasNews;
  }

  /** A thread that polls does the work itself. */
  get gainsFromPolling(): boolean {
    return this.#drivers.hasLinks;
  }

  prepareSleep(): number {
    return this.#drivers.prepareSleep();
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#listener?.close();
    await Promise.all([...this.#links].map((link) => link.close()));
    await this.#drivers.close();
  }

  async #welcome(channel: ControlChannel): Promise<void> {
    let place: Place | undefined;
    // Strangers cost no worker: it is made when the caller has proven itself.
    const reserve = (): Place['self'] => {
      place = this.#reserve();
      return place.self;
    };
    const connect = async (meeting: UcxMeeting): Promise<void> => {
      this.#establish(place as Place, meeting);
      place = undefined;
    };
    try {
      await acceptUcxPeer(channel, this.#self, { reserve, connect });
    } finally {
      place?.giveBack();
    }
  }

  #reserve(): Place {
    const driver = this.#drivers.take();
    try {
      driver.enter();
      try {
        const link = driver.links.reserve();
        const giveBack = (): void => {
          driver.links.giveBack(link);
          this.#drivers.giveBack(driver);
        };
        return { driver, self: { link, address: driver.context.address }, giveBack };
      } finally {
        driver.leave();
      }
    } catch (error) {
      this.#drivers.giveBack(driver);
      throw error;
    }
  }

  #establish({ driver, self }: Place, meeting: UcxMeeting): UcxLink {
    const { address, remoteLink: remoteNumber, peer, secretLow, secretHigh, channel } = meeting;
    try {
      driver.enter();
      try {
        const process = this.#processOf(meeting);
        const keys = { secretLow, secretHigh, process };
        const block = driver.links.open({ number: self.link, remoteNumber, peer, address, ...keys });
        const onEnd = (): void => this.#ended(link);
        const onTaken = (): void => this.#forget(link);
        const link: UcxLink = new UcxLink(driver, block, { peer, channel, onEnd, onTaken });
        this.#links.push(link);
        return link;
      } finally {
        driver.leave();
      }
    } catch (error) {
      channel.refuse(error);
      throw error;
    }
  }

  /** Its worker goes at once: while that lives, UCX may use memory. */
  #ended(link: UcxLink): void {
    this.#drivers.giveBack(link.driver);
    if (!link.isHoldingBack) {
      this.#forget(link);
      return;
    }
    this.#isHoldingBack = true;
    this.#context.wake.ring();
  }

  #forget(link: UcxLink): void {
    const at = this.#links.indexOf(link);
    if (at >= 0) this.#links.splice(at, 1);
  }

  /** A descriptor of the peer's process, if it is one of this host and the number means the same process here. */
  #processOf({ host, process, started }: UcxMeeting): number {
    if (host !== this.#self.host || started === '' || startOfProcess(process) !== started) return -1;
    return openProcess(process);
  }
}
