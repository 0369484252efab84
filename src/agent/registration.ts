// Memory that an agent has registered: what the caller gave, where it lies, and what each backend made of it.
import { checkOptions, isWhole, type OptionNames } from '../core/check-options.ts';
import { Deadline, within } from '../core/deadline.ts';
import { asWeftlineError, invalidArgument, WeftlineError } from '../core/errors.ts';
import { log } from '../core/log.ts';
import { quote } from '../core/quote.ts';
import { type HostAccess, type Storage, Tensor } from '../device/tensor.ts';
import { SharedMemory } from '../windows/shared-memory.ts';
import type { BackendName, BackendSet } from './backends/backend-table.ts';
import { type AgentMemory, type BackendRegion, type MemoryKind, untilDone } from './backend.ts';
import type { RegionMetadata } from './metadata.ts';
import { placedBytes } from '../transport/host/memory-region.ts';

/** Device memory that is not a tensor. */
interface DeviceMemory {
  readonly device: HostAccess;
  readonly address: number;
  readonly bytes: number;
}

/** Host memory, a tensor of either device, or a piece of device memory. */
export type Registrable = Uint8Array | Tensor | DeviceMemory;

/** Registered memory. It must stay allocated until it is closed. */
export class Registration implements AsyncDisposable {
  /** Peers find it by this name; '' if none was given. */
  readonly name: string;
  /** The number at the agent, never used again. */
  readonly number: number;
  /** @internal */
  readonly memory: AgentMemory;
  /** A tensor's storage: it is freed when nobody holds it, and its owner may free it early. */
  readonly #storage: Storage | undefined;
  /** @internal Backends that can use it, and the region of each. */
  readonly regions: Map<BackendName, BackendRegion> = new Map();
  /** @internal Why a backend that could use it does not: it failed to register it. */
  readonly failures: Map<BackendName, string> = new Map();
  #isOpen = true;
  /** @internal What close() does, which whoever registered it says. */
  end: () => Promise<void> = () => Promise.resolve();

  /** @internal */
  constructor(
    memory: AgentMemory,
    caller: Registrable,
    { name, number }: { readonly name: string; readonly number: number },
  ) {
    this.memory = memory;
    this.#storage = caller instanceof Tensor ? caller.storage : undefined;
    this.name = name;
    this.number = number;
  }

  /** Memory of the host, or of a GPU. */
  get kind(): MemoryKind {
    return this.memory.kind;
  }

  /** The address at which the memory begins, as this process (or its GPU) sees it. */
  get address(): number {
    return this.memory.address;
  }

  /** How many there are. */
  get length(): number {
    return this.memory.bytes;
  }

  /** Host memory in place. Fails with WL_CLOSED once it is closed. */
  get bytes(): Uint8Array {
    if (!this.#isOpen) throw new WeftlineError('WL_CLOSED', 'The registration of the memory was closed');
    const { view } = this.memory;
    if (view === undefined)
      throw new WeftlineError('WL_UNSUPPORTED', 'The host cannot address device memory: use its tensor');
    return view;
  }

  /**
   * The memory is the caller's again: transfers that use it fail with WL_CLOSED, peers get errors, and once it has resolved
   * no peer reads or writes it; what `allocate` gave is freed. Fails with WL_TIMEOUT, naming a peer that is still copying after
   * `timeoutMs`: the memory must not be used for anything else yet, and the call may be repeated. Idempotent.
   */
  close(): Promise<void> {
    return this.end();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** @internal What a backend made of the memory; one that was chosen for a transfer has it. */
  regionBy(backend: BackendName): BackendRegion {
    return this.regions.get(backend) as BackendRegion;
  }

  /** @internal */
  get isOpen(): boolean {
    return this.#isOpen && this.#storage?.disposed !== true;
  }

  /**
   * All backends give it up, and what `agent.allocate` gave is freed. Fails with the first error, having tried all. After
   * WL_TIMEOUT it takes no new transfers, is not freed because a peer may still touch it, and `release` may be called again.
   * @internal
   */
  readonly release: (timeoutMs: number) => Promise<void> = untilDone((timeoutMs: number) => this.#release(timeoutMs));

  async #release(timeoutMs: number): Promise<void> {
    try {
      await this.withdraw(timeoutMs);
    } catch (error) {
      // A backend that is gone touches nothing; a peer that is late may.
      if (!isLate(error)) this.free();
      throw error;
    }
    this.free();
  }

  /** @internal Unmaps what `agent.allocate` gave. Peers that have it mapped keep it until they unmap it as well. */
  free(): void {
    this.memory.shared?.memory[Symbol.dispose]();
  }

  /** @internal All backends give it up. Of several errors, one that tells of a late peer is thrown. */
  async withdraw(timeoutMs: number): Promise<void> {
    this.#isOpen = false;
    const ends = await Promise.allSettled(
      [...this.regions].map(([backend, region]) => {
        const deadline = new Deadline(timeoutMs, performance.now() + timeoutMs + LATER_MS);
        return within(region.release(), { deadline }, () => late(this, backend, timeoutMs));
      }),
    );
    const errors = ends.flatMap((end) => (end.status === 'rejected' ? [end.reason as unknown] : []));
    if (errors.length > 0) throw errors.find(isLate) ?? errors[0];
  }
}

/** Hot path. True if none of them was deregistered. */
export function areOpen(registrations: readonly Registration[]): boolean {
  for (let at = 0; at < registrations.length; at++) if (!(registrations[at] as Registration).isOpen) return false;
  return true;
}

/** A peer may still touch the memory. */
function isLate(error: unknown): boolean {
  return error instanceof WeftlineError && error.code === 'WL_TIMEOUT';
}

/** So that a backend that can name the late peer fails first. */
const LATER_MS = 50;

function late({ name, number }: Registration, backend: BackendName, timeoutMs: number): WeftlineError {
  return new WeftlineError(
    'WL_TIMEOUT',
    `Memory ${number} (${quote(name)}) is still used by transfers of the backend ${backend} after ${timeoutMs} ms; it takes no new ones, but must not be used for anything else yet: close it again to go on waiting`,
    { details: { region: number, backend, timeoutMs } },
  );
}

/** Tells where memory lies. Fails with WL_INVALID_ARGUMENT for anything else. */
export function describeMemory(memory: Registrable): AgentMemory {
  if (memory instanceof Tensor) {
    if (memory.device.kind === 'cpu') return hostMemory(memory.view());
    return cudaMemory({ device: memory.device, address: memory.address, bytes: memory.bytes });
  }
  if (ArrayBuffer.isView(memory)) return hostMemory(memory);
  if (typeof memory === 'object' && memory !== null && typeof memory.address === 'number') return cudaMemory(memory);
  throw invalidArgument('memory', memory, 'a Uint8Array, a tensor, or { device, address, bytes }');
}

export function sharedHostMemory(memory: SharedMemory): AgentMemory {
  const view = new Uint8Array(memory.buffer());
  return {
    kind: 'host',
    address: memory.address,
    bytes: view.length,
    view,
    device: undefined,
    shared: { memory, offset: 0 },
  };
}

function hostMemory(given: ArrayBufferView): AgentMemory {
  if (given.byteLength === 0) throw invalidArgument('memory', given, 'at least one byte');
  const { bytes: view, address } = placedBytes(given);
  return {
    kind: 'host',
    address,
    bytes: view.length,
    view,
    device: undefined,
    shared: undefined,
  };
}

function cudaMemory({ device, address, bytes }: DeviceMemory): AgentMemory {
  if (device?.kind !== 'cuda') throw invalidArgument('device', device, 'a CUDA device');
  if (!Number.isSafeInteger(address) || address <= 0) throw invalidArgument('address', address, 'a device pointer');
  if (!Number.isSafeInteger(bytes) || bytes <= 0) throw invalidArgument('bytes', bytes, 'at least 1');
  return { kind: 'cuda', address, bytes, view: undefined, device, shared: undefined };
}

// What an agent has registered, and with which of its backends.

/** How memory is registered. */
export interface RegisterOptions {
  /** The name by which peers find it; '' by default. */
  readonly name?: string;
}

const registerOptionNames: OptionNames<RegisterOptions> = { name: true };

export class Registrations {
  readonly #agent: string;
  readonly #timeoutMs: number;
  readonly #set: BackendSet;
  readonly #known = new Map<number, Registration>();
  /** Memory that a peer still touches, or did when it was last looked at. */
  readonly #leaving = new Set<Registration>();
  #nextNumber = 1;

  /** `timeoutMs`: how long backends may take to give memory up. */
  constructor(agent: string, set: BackendSet, timeoutMs: number) {
    this.#agent = agent;
    this.#timeoutMs = timeoutMs;
    this.#set = set;
  }

  get all(): readonly Registration[] {
    return [...this.#known.values()];
  }

  /** What metadata tell of them; all if none are named. Fails with WL_INVALID_ARGUMENT for one that is not registered. */
  describe(regions: readonly Registration[] = this.all): RegionMetadata[] {
    requireList('regions', regions);
    return regions.map((region) => {
      if (!this.has(region)) {
        const got: unknown = region instanceof Registration ? region.name : region;
        throw invalidArgument('regions', got, 'memory that is registered with this agent');
      }
      const { number, name, kind, address, length: bytes } = region;
      const info = new Map([...region.regions].map(([backend, made]) => [backend, made.info]));
      return { number, name, kind, address, bytes, info };
    });
  }

  /** Numbers of memory that was deregistered. Fails with WL_INVALID_ARGUMENT for one that is registered. */
  withdrawn(regions: readonly Registration[]): number[] {
    requireList('withdrawn', regions);
    return regions.map((region) => {
      if (!(region instanceof Registration)) {
        throw invalidArgument('withdrawn', region, 'what register() or allocate() returned');
      }
      if (this.has(region)) throw invalidArgument('withdrawn', region.name, 'a registration that was closed');
      return region.number;
    });
  }

  async add(memory: Registrable, options: RegisterOptions): Promise<Registration> {
    checkRegister(options, 'options of register');
    return this.#register(describeMemory(memory), memory, options);
  }

  /** `populate` sets up all pages now. */
  async allocate(bytes: number, populate: boolean, options: RegisterOptions): Promise<Registration> {
    checkRegister(options, 'options of allocate');
    if (!isWhole(bytes, 1)) throw invalidArgument('bytes', bytes, 'a whole number of at least 1');
    const shared = SharedMemory.create('agent', bytes, populate);
    const memory = sharedHostMemory(shared);
    try {
      return await this.#register(memory, memory.view as Uint8Array, options);
    } catch (error) {
      shared[Symbol.dispose]();
      throw error;
    }
  }

  async #remove(registration: Registration): Promise<void> {
    if (this.has(registration)) this.#known.delete(registration.number);
    this.#leaving.add(registration);
    await registration.release(this.#timeoutMs);
    this.#leaving.delete(registration);
  }

  /** Releases all of them; errors are ignored. */
  async close(): Promise<void> {
    const all = [...this.all, ...this.#leaving];
    this.#known.clear();
    this.#leaving.clear();
    await Promise.allSettled(all.map((registration) => registration.release(this.#timeoutMs)));
    for (const registration of all) registration.free();
  }

  /** Whether it is registered here, and not closed. */
  has(registration: Registration): boolean {
    return registration instanceof Registration && this.#known.get(registration.number) === registration;
  }

  async #register(memory: AgentMemory, caller: Registrable, { name = '' }: RegisterOptions): Promise<Registration> {
    const registration = new Registration(memory, caller, { name, number: this.#nextNumber++ });
    registration.end = () => this.#remove(registration);
    const reasons: string[] = [...this.#set.missing].map(([backend, why]) => `${backend}: ${why}`);
    const lacks: { readonly backend: BackendName; readonly error: unknown }[] = [];
    try {
      for (const backend of this.#set.backends) {
        const why = backend.whyNotMemory(memory);
        if (why !== undefined) {
          reasons.push(`${backend.name}: ${why}`);
          continue;
        }
        try {
          registration.regions.set(backend.name, await backend.register(memory));
        } catch (error) {
          if (backend.isOptionalFor?.(memory) !== true) throw error;
          lacks.push({ backend: backend.name, error });
        }
      }
      if (registration.regions.size === 0 && lacks.length > 0) throw lacks[0]?.error;
    } catch (error) {
      await registration.withdraw(this.#timeoutMs);
      throw error;
    }
    if (registration.regions.size === 0) {
      const why = reasons.join('; ');
      throw new WeftlineError('WL_UNSUPPORTED', `No backend of agent ${this.#agent} takes this memory: ${why}`);
    }
    for (const { backend, error } of lacks) {
      const { message } = asWeftlineError(error);
      registration.failures.set(backend, message);
      log('agent', 'warn', `memory ${quote(name)} is not registered with ${backend}: ${message}`);
    }
    this.#known.set(registration.number, registration);
    return registration;
  }
}

function checkRegister(options: RegisterOptions, what: string): void {
  checkOptions(options, registerOptionNames, what);
  const { name = '' } = options;
  if (typeof name !== 'string') throw invalidArgument('name', name, 'a string');
}

function requireList(what: string, regions: unknown): void {
  if (!Array.isArray(regions)) throw invalidArgument(what, regions, 'an array of registered memory');
}
