// What an agent has registered, and with which of its backends.
import { checkOptions, type OptionNames } from '../core/check-options.ts';
import { asWeftlineError, invalidArgument, WeftlineError } from '../core/errors.ts';
import { isWhole } from '../core/whole-number.ts';
import { log } from '../core/log.ts';
import { quote } from '../core/quote.ts';
import { SharedMemory } from '../windows/shared-memory.ts';
import type { AgentMemory } from './agent-memory.ts';
import type { BackendSet } from './backend-set.ts';
import type { BackendName } from './backends/backend-table.ts';
import type { RegionMetadata } from './metadata.ts';
import { describeMemory, type Registrable, Registration, sharedHostMemory } from './registration.ts';

/** How memory is registered. */
export interface RegisterOptions {
  /** For peers to find it by; '' by default. */
  readonly name?: string;
}

const registerOptionNames: OptionNames<RegisterOptions> = { name: true };

export class Registrations {
  readonly #agent: string;
  readonly #timeoutMs: number;
  readonly #set: BackendSet;
  readonly #known = new Map<number, Registration>();
  /** Those that a peer still touches, or did when they were last looked at. */
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

  /** For metadata; all of them if none are named. Fails with WL_INVALID_ARGUMENT for one that is not registered. */
  describe(regions: readonly Registration[] = this.all): RegionMetadata[] {
    requireList('regions', regions);
    return regions.map((region) => {
      if (!this.#has(region))
        throw invalidArgument('regions', nameOf(region), 'memory that is registered with this agent');
      const { number, name, kind, address, length: bytes } = region;
      const info = new Map([...region.regions].map(([backend, made]) => [backend, made.info]));
      return { number, name, kind, address, bytes, info };
    });
  }

  /** Their numbers. Fails with WL_INVALID_ARGUMENT for one that is registered. */
  withdrawn(regions: readonly Registration[]): number[] {
    requireList('withdrawn', regions);
    return regions.map((region) => {
      if (!(region instanceof Registration)) {
        throw invalidArgument('withdrawn', region, 'what register() or allocate() returned');
      }
      if (this.#has(region)) throw invalidArgument('withdrawn', region.name, 'memory that was deregistered');
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

  async remove(registration: Registration): Promise<void> {
    if (!(registration instanceof Registration)) {
      throw invalidArgument('registration', registration, 'what register() or allocate() returned');
    }
    if (this.#has(registration)) this.#known.delete(registration.number);
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

  #has(registration: Registration): boolean {
    return registration instanceof Registration && this.#known.get(registration.number) === registration;
  }

  async #register(memory: AgentMemory, caller: Registrable, { name = '' }: RegisterOptions): Promise<Registration> {
    const registration = new Registration(memory, caller, { name, number: this.#nextNumber++ });
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
          registration.add(backend.name, await backend.register(memory));
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
      registration.noteFailure(backend, message);
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

function nameOf(region: unknown): unknown {
  return region instanceof Registration ? region.name : region;
}
