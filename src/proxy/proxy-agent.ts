// The agent of a proxy thread: its registered memory, its peers, and a channel per peer that commands are posted to.
import { Agent } from '../agent/agent.ts';
import type { BackendChannel, BackendLink, BackendName, PutPlace } from '../agent/backend.ts';
import type { Registration } from '../agent/registration.ts';
import { invalidArgument } from '../core/errors.ts';
import { CudaDevice } from '../device/cuda/cuda-device.ts';
import { viewAt } from '../native/library.ts';
import type { CommandRoute, ServedRequest } from './command-server.ts';
import type { Allocation, ProxyWorkerData, RemoteRange, RequestOptions } from './proxy-messages.ts';

export class ProxyAgent {
  readonly #agent: Agent;
  /** This thread's own object for the GPU; its context and memory are those of the process. */
  readonly #device: CudaDevice | undefined;
  readonly #registrations = new Map<number, Registration>();
  readonly #channels = new Map<BackendLink, BackendChannel>();

  static async create({ agent, backends, token, settings, ordinal, host }: ProxyWorkerData): Promise<ProxyAgent> {
    const device = ordinal === undefined ? undefined : await CudaDevice.create({ ...settings, ordinal });
    try {
      const options = { settings, token, ...(host === undefined ? {} : { host }) };
      const made = await Agent.create(agent, { ...options, ...(backends === undefined ? {} : { backends }) });
      return new ProxyAgent(made, device);
    } catch (error) {
      await device?.[Symbol.asyncDispose]();
      throw error;
    }
  }

  private constructor(agent: Agent, device: CudaDevice | undefined) {
    this.#agent = agent;
    this.#device = device;
  }

  /** Host memory. */
  async allocate(bytes: number): Promise<Allocation> {
    const registration = await this.#agent.allocate(bytes);
    this.#registrations.set(registration.number, registration);
    return { id: registration.number, address: registration.address };
  }

  /** Of this process: of the GPU if there is one, else of the host. */
  async register(address: number, bytes: number): Promise<number> {
    const device = this.#device;
    const memory = device === undefined ? new Uint8Array(viewAt(address, bytes)) : { device, address, bytes };
    const registration = await this.#agent.register(memory);
    this.#registrations.set(registration.number, registration);
    return registration.number;
  }

  metadata(): Uint8Array {
    return this.#agent.localMetadata();
  }

  addRemote(metadata: Uint8Array): Promise<string> {
    return this.#agent.loadRemoteMetadata(metadata);
  }

  /** Connects, if that is not done. The path is the backend's name. */
  async openRequest(options: RequestOptions): Promise<{ readonly request: ServedRequest; readonly path: BackendName }> {
    const registration = this.#registrations.get(options.region) as Registration;
    const remotes: CommandRoute[] = [];
    let path: BackendName | undefined;
    for (const range of options.remotes) {
      const parts = await this.#agent.channelParts(options.peer, registration, range.region);
      path ??= parts.backend;
      const { local, remote } = parts;
      const place: PutPlace = { local, localOffset: 0, remote, remoteOffset: 0, bytes: 0 };
      const channel = this.#channel(parts.link);
      await channel.prepare?.(local, remote);
      remotes.push(new AgentRoute(channel, place, { ...options, range }));
    }
    return { request: { peer: options.peer, remotes }, path: path as BackendName };
  }

  /** Hot path. */
  poll(): boolean {
    return this.#agent.poll();
  }

  async close(): Promise<void> {
    await this.#agent.close();
    await this.#device?.[Symbol.asyncDispose]();
  }

  /** One per link, whichever queue a command comes from: within it, all is in order. */
  #channel(link: BackendLink): BackendChannel {
    let channel = this.#channels.get(link);
    if (channel === undefined || channel.error !== undefined) {
      channel = link.openChannel();
      this.#channels.set(link, channel);
    }
    return channel;
  }
}

/** The ranges of a request as the commands' offsets count them. Hot path. */
class AgentRoute implements CommandRoute {
  readonly channel: BackendChannel;
  readonly #place: PutPlace;
  readonly #localBegin: number;
  readonly #localBytes: number;
  readonly #range: RemoteRange;

  constructor(
    channel: BackendChannel,
    place: PutPlace,
    { offset, bytes, range }: { readonly offset: number; readonly bytes: number; readonly range: RemoteRange },
  ) {
    this.channel = channel;
    this.#place = place;
    this.#localBegin = offset;
    this.#localBytes = bytes;
    this.#range = range;
  }

  put(source: number, target: number, bytes: number): boolean {
    // The device has checked this; its memory may have been overwritten since.
    if (source + bytes > this.#localBytes) throw outside('source', source + bytes, this.#localBytes);
    if (target + bytes > this.#range.bytes) throw outside('target', target + bytes, this.#range.bytes);
    const place = this.#place;
    place.localOffset = this.#localBegin + source;
    place.remoteOffset = this.#range.offset + target;
    place.bytes = bytes;
    return this.channel.put(place);
  }

  signal(target: number, add: number): boolean {
    if (target + 8 > this.#range.bytes) throw outside('counter', target + 8, this.#range.bytes);
    return this.channel.signal(this.#place.remote, this.#range.offset + target, add);
  }
}

function outside(what: string, end: number, limit: number): Error {
  return invalidArgument(`end of a command's ${what}`, end, `at most ${limit}`);
}
