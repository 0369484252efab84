// The agent's backend over UCX: meets peers, registers memory, takes in what its worker has found out.
import { randomBytes } from 'node:crypto';
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import type { ControlChannel } from '../../../meeting/control-channel.ts';
import { credentialsOf } from '../../../meeting/credentials.ts';
import { MeetingListener } from '../../../meeting/listener.ts';
import { localFiles } from '../../../native/file-probe.ts';
import { openProcess, startOfProcess } from '../../../native/process-descriptor.ts';
import { hasActiveRdmaPort } from '../../../native/rdma-ports.ts';
import { openUcx } from '../../../native/ucx.ts';
import { hostIdentity } from '../../../world/host-identity.ts';
import type { AgentMemory, MemoryKind } from '../../agent-memory.ts';
import type { Backend, BackendContext, BackendPeer, BackendRegion, ConnectOptions } from '../../backend.ts';
import { decodeUcxAddress, encodeUcxAddress } from './ucx-info.ts';
import { UcxDriver } from './ucx-driver.ts';
import { UcxLink } from './ucx-link.ts';
import { receiveUcxGuest, type UcxMeeting, type UcxSelf, visitUcxPeer } from './ucx-meeting.ts';
import { UcxRegion } from './ucx-region.ts';
import { mayUse } from './ucx-transports.ts';
import { CHANNELS, REGIONS, SLOTS } from './ucx-tables.ts';

/** Fails with WL_UNSUPPORTED without libucp. */
export async function createUcxBackend(context: BackendContext): Promise<Backend> {
  // Before anything is made that would have to be closed.
  openUcx();
  return UcxBackend.open(context);
}

export class UcxBackend implements Backend {
  readonly name = 'ucx';
  readonly driver: UcxDriver;
  /** Free places of the tables. */
  readonly slots: number[] = countDown(SLOTS);
  readonly channels: number[] = countDown(CHANNELS);
  readonly #free: number[] = [];
  #regions = 0;
  readonly #context: BackendContext;
  #connectionInfo: Uint8Array = new Uint8Array(0);
  #listener: MeetingListener | undefined;
  readonly #self: Omit<UcxSelf, 'link'>;
  readonly #links: UcxLink[] = [];
  /** So that registered memory lives as long. */
  readonly #memories = new Map<number, Uint8Array | undefined>();
  #isHoldingBack = false;
  #closing: Promise<void> | undefined;

  static async open(context: BackendContext): Promise<UcxBackend> {
    const { ownThread, wake, settings } = context;
    const driver = new UcxDriver({ ownThread, wake, spinMicroseconds: settings.transportSpinUs });
    try {
      const backend = new UcxBackend(context, driver);
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
      await driver.close();
      throw error;
    }
  }

  private constructor(context: BackendContext, driver: UcxDriver) {
    this.#context = context;
    this.driver = driver;
    const { agentName: name, incarnation, token } = context;
    this.#self = {
      credentials: credentialsOf(token),
      name,
      incarnation,
      host: hostIdentity(),
      process: process.pid,
      started: startOfProcess(process.pid) ?? '',
      address: driver.context.address,
      sharesMemory: mayUse('shm', 'sm', 'mm', 'posix', 'sysv', 'xpmem'),
    };
  }

  get connectionInfo(): Uint8Array {
    return this.#connectionInfo;
  }

  whyNotMemory(memory: AgentMemory): string | undefined {
    return this.whyNotRemote(memory.kind);
  }

  whyNotPeer(peer: BackendPeer): string | undefined {
    return decodeUcxAddress(peer.connectionInfo) === undefined ? 'its address is not understood' : undefined;
  }

  get whyOnlyForced(): string | undefined {
    return hasActiveRdmaPort(localFiles()) ? undefined : 'this host has no RDMA device with an active port';
  }

  whyNotRemote(kind: MemoryKind): string | undefined {
    return kind === 'host' ? undefined : 'it moves host memory only';
  }

  async register(memory: AgentMemory): Promise<BackendRegion> {
    const why = this.whyNotMemory(memory);
    if (why !== undefined) throw new WeftlineError('WL_UNSUPPORTED', `The backend ucx cannot use the memory: ${why}`);
    const { address, bytes } = memory;
    const number = this.#free.pop() ?? this.#regions++;
    if (number >= REGIONS) throw new WeftlineError('WL_CAPACITY', 'Too many registered regions: deregister some first');
    const key = randomBytes(4).readUInt32LE();
    const { tables } = this.driver;
    this.driver.enter();
    tables.regionAddress[number] = address;
    tables.regionBytes[number] = bytes;
    tables.regionKey[number] = key;
    tables.regionUses[number] = 0;
    tables.regionIsOpen[number] = 1;
    this.driver.leave();
    this.#memories.set(number, memory.view);
    return new UcxRegion(address, { number, key }, () => this.#release(number));
  }

  async #release(region: number): Promise<void> {
    const { driver } = this;
    const { tables } = driver;
    await driver.until(() => {
      tables.regionIsOpen[region] = 0;
      return tables.regionUses[region] === 0;
    });
    this.#memories.delete(region);
    this.#free.push(region);
  }

  async connect(peer: BackendPeer, options: ConnectOptions): Promise<UcxLink> {
    const address = decodeUcxAddress(peer.connectionInfo);
    if (address === undefined) throw invalidArgument('connectionInfo', peer.name, 'that of a ucx backend');
    const link = this.#reserve();
    try {
      return this.#establish(link, await visitUcxPeer({ peer, address }, { ...this.#self, link }, options));
    } catch (error) {
      this.driver.links.giveBack(link);
      throw error;
    }
  }

  poll(): boolean {
    const hasNews = this.driver.look();
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
    if (isAwaited) this.driver.look();
    return hasNews;
  }

  /** Whoever looks works itself. */
  get gainsFromPolling(): boolean {
    return this.driver.hasLinks;
  }

  prepareSleep(): number {
    return this.driver.prepareSleep();
  }

  forgetLink(link: UcxLink): void {
    const at = this.#links.indexOf(link);
    if (at >= 0) this.#links.splice(at, 1);
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#listener?.close();
    await Promise.all([...this.#links].map((link) => link.close()));
    await this.driver.close();
    this.#memories.clear();
  }

  async #welcome(channel: ControlChannel): Promise<void> {
    let link: number | undefined;
    const reserve = (): { link: number; address: Uint8Array } => {
      link = this.#reserve();
      return { link, address: this.#self.address };
    };
    const connect = async (meeting: UcxMeeting): Promise<void> => {
      this.#establish(link as number, meeting);
      link = undefined;
    };
    try {
      await receiveUcxGuest(channel, this.#self, { reserve, connect });
    } finally {
      if (link !== undefined) this.driver.links.giveBack(link);
    }
  }

  #reserve(): number {
    this.driver.enter();
    try {
      return this.driver.links.reserve();
    } finally {
      this.driver.leave();
    }
  }

  #establish(number: number, meeting: UcxMeeting): UcxLink {
    const { address, remoteLink: remoteNumber, peer, secretLow, secretHigh, mode } = meeting;
    const { driver } = this;
    try {
      driver.enter();
      try {
        const process = this.#processOf(meeting);
        const keys = { secretLow, secretHigh, mode, process };
        const block = driver.links.open({ number, remoteNumber, peer, address, ...keys });
        const link = new UcxLink(this, block, meeting);
        this.#links.push(link);
        return link;
      } finally {
        driver.leave();
      }
    } catch (error) {
      meeting.channel.refuse(error);
      throw error;
    }
  }

  /** A descriptor of the peer's process, if it is one of this host and the number means the same process here. */
  #processOf({ host, process, started }: UcxMeeting): number {
    if (host !== this.#self.host || started === '' || startOfProcess(process) !== started) return -1;
    return openProcess(process);
  }
}

function countDown(count: number): number[] {
  return Array.from({ length: count }, (_, index) => count - 1 - index);
}
