// The agent's backend over UCX: its puts, gets and atomics, where an RDMA device carries them out and checks them.
import { openUcx } from '../../../native/ucx.ts';
import { AsyncEvents, VerbsContext } from '../../../native/verbs/context.ts';
import type { RdmaRail } from '../../../rails/rdma-choice.ts';
import type { Settings } from '../../../settings/settings.ts';
import type { Backend, BackendContext } from '../../backend.ts';
import { openRdmaBackend } from '../../rdma/rdma-backend.ts';
import {
  choosePort,
  type Completions,
  type EndOptions,
  type OwnMemory,
  type RdmaDevice,
  type RdmaEnd,
  type RemoteKeys,
} from '../../rdma/rdma-device.ts';
import { UcxContext, UcxMemories, ucxSettings } from './ucx-context.ts';
import { UcxEnd } from './ucx-end.ts';
import { UcxKeys, UcxWorker } from './ucx-worker.ts';

/**
 * Fails with WL_UNSUPPORTED without libucp, without a port for RDMA, and where UCX_TLS allows no transport that a device
 * checks; with WL_CONFIG for settings that name what this host does not have.
 */
export async function createBackend(context: BackendContext): Promise<Backend<'ucx'>> {
  // This may fail, so it comes before anything is made that would have to be closed.
  openUcx();
  const { rail, controlHost = context.host } = choosePort(context.settings);
  const device = new UcxDevice(rail, context.settings);
  return openRdmaBackend(context, { name: 'ucx', device, host: controlHost });
}

// What is made of UCX for all links of a backend: context, one worker for links and one for peers that call, memory.

/** One put may be longer nowhere; smaller ones let other transfers in, and the ends of cancelled ones come sooner. */
const CHUNK_BYTES = 1 << 20;
/** Turns of a worker in one look at most. */
const MAX_TURNS = 64;

/** Devices that UCX may still use, and all that belongs to them. */
const abandoned = new Set<UcxDevice>();

class UcxDevice implements RdmaDevice {
  readonly port: RdmaDevice['port'];
  readonly portNumber: number;
  readonly events: AsyncEvents;
  readonly hasAtomics: boolean;
  readonly chunkBytes = CHUNK_BYTES;
  readonly completions: UcxCompletions;
  readonly memories: UcxMemories;
  /** The device's verbs, for its port's state and events. */
  readonly #verbs: VerbsContext;
  readonly #context: UcxContext;
  readonly #callers: UcxWorker;
  readonly #called: UcxWorker;

  /** Fails with WL_UNSUPPORTED without libucp, libibverbs or a transport, with WL_NATIVE if UCX refuses. */
  constructor(rail: RdmaRail, settings: Settings) {
    const own = ucxSettings(rail, settings);
    this.#verbs = VerbsContext.open(rail.name);
    try {
      const { linkLayer } = this.#verbs.queryPort(rail.port);
      this.port = { name: `${rail.name} port ${rail.port}`, linkLayer };
      this.portNumber = rail.port;
      this.events = new AsyncEvents(this.#verbs);
      this.hasAtomics = this.#verbs.attributes.atomicCap !== 'none';
      this.#context = new UcxContext(own, this.hasAtomics);
    } catch (error) {
      this.#verbs.close();
      throw error;
    }
    const workers: UcxWorker[] = [];
    try {
      // Two, because UCX joins connections that two workers make to each other: a refusal on one would end the other.
      for (let index = 0; index < 2; index++) workers.push(new UcxWorker(this.#context));
    } catch (error) {
      for (const worker of workers) worker[Symbol.dispose]();
      this.#context[Symbol.dispose]();
      this.#verbs.close();
      throw error;
    }
    [this.#callers, this.#called] = workers as [UcxWorker, UcxWorker];
    this.#called.receive();
    this.completions = new UcxCompletions(this.#callers, this.#called);
    this.memories = new UcxMemories(this.#context);
  }

  get descriptors(): readonly number[] {
    return [this.#callers.fd, this.#called.fd];
  }

  takeChannelEvents(): void {
    // A look at the workers does.
  }

  register({ address, bytes }: { readonly address: number; readonly bytes: number }): OwnMemory {
    return this.memories.register(address, bytes);
  }

  isRegistered(name: string): boolean {
    return this.memories.isRegistered(name);
  }

  openKeys(): RemoteKeys {
    return new UcxKeys();
  }

  openEnd(options: EndOptions): RdmaEnd {
    return new UcxEnd(this, options.role === 'caller' ? this.#callers : this.#called, options);
  }

  /** UCX has not given up something: it stays as it is until the process ends. */
  abandon(): void {
    abandoned.add(this);
  }

  [Symbol.dispose](): void {
    if (!abandoned.has(this)) {
      this.#callers[Symbol.dispose]();
      this.#called[Symbol.dispose]();
      this.memories.close();
      this.#context[Symbol.dispose]();
    } else this.memories.close();
    this.#verbs.close();
  }
}

class UcxCompletions implements Completions {
  readonly #workers: readonly UcxWorker[];
  readonly #called: UcxWorker;
  readonly #ends: UcxEnd[] = [];
  readonly #byTag = new Map<number, UcxEnd>();
  readonly #take = (tag: number, word: number): void => this.#byTag.get(tag)?.arrived(word);

  constructor(callers: UcxWorker, called: UcxWorker) {
    this.#workers = [callers, called];
    this.#called = called;
  }

  enter(end: UcxEnd): void {
    this.#ends.push(end);
    this.#byTag.set(end.address.tag, end);
  }

  leave(end: UcxEnd): void {
    const at = this.#ends.indexOf(end);
    if (at >= 0) this.#ends.splice(at, 1);
    this.#byTag.delete(end.address.tag);
  }

  get isInUse(): boolean {
    return this.#ends.length > 0;
  }

  get isBusy(): boolean {
    for (const end of this.#ends) if (end.isBusy) return true;
    return false;
  }

  poll(): boolean {
    let hasNews = false;
    for (let index = 0; index < this.#workers.length; index++) {
      const worker = this.#workers[index]!;
      for (let turn = 0; turn < MAX_TURNS && worker.progress() > 0; turn++);
    }
    if (this.#called.takeWords(this.#take)) hasNews = true;
    // An end that fails may leave.
    for (let at = this.#ends.length - 1; at >= 0; at--) if (this.#ends[at]?.progress() === true) hasNews = true;
    return hasNews;
  }

  arm(): boolean {
    let isArmed = true;
    for (const worker of this.#workers) if (!worker.arm()) isArmed = false;
    return isArmed;
  }
}
