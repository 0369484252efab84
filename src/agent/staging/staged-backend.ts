// Memory of GPUs for backends that carry host memory: wraps one, and stages what it cannot carry by a thread of its own.
import { asWeftlineError } from '../../core/errors.ts';
import { log } from '../../core/log.ts';
import { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type {
  AgentMemory,
  Backend,
  BackendContext,
  BackendPeer,
  ConnectOptions,
  CreateBackend,
  MemoryKind,
  PathMemory,
  RemoteRegionInfo,
} from '../backend.ts';
import { StagedLink } from './staged-link.ts';
import { encodeStagedRegion, namesStagedMemory, StagedRegion, type StagedRegionParts } from './staged-region.ts';
import { StagingThread } from './staging-thread.ts';

const STAGED = 'staged through pinned memory';

/** The backend with memory of GPUs, staged where it cannot reach that itself. */
export function withDeviceMemory<Name extends string>(createBackend: CreateBackend<Name>): CreateBackend<Name> {
  return async (context) => new StagedBackend(await createBackend(context), context);
}

class StagedBackend<Name extends string> implements Backend<Name> {
  readonly name: Name;
  readonly #host: Backend<Name>;
  readonly #context: BackendContext;
  #starting: Promise<StagingThread> | undefined;
  #thread: StagingThread | undefined;
  #news = 0;
  #closing: Promise<void> | undefined;

  constructor(host: Backend<Name>, context: BackendContext) {
    this.name = host.name;
    this.#host = host;
    this.#context = context;
  }

  get connectionInfo(): Uint8Array {
    return this.#host.connectionInfo;
  }

  whyNotMemory(memory: AgentMemory): string | undefined {
    if (memory.kind === 'host') return this.#host.whyNotMemory(memory);
    return memory.device instanceof CudaDevice ? undefined : 'it stages memory of CUDA devices of this package only';
  }

  whyNotPeer(peer: BackendPeer): string | undefined {
    return this.#host.whyNotPeer(peer);
  }

  whyNotRemote(kind: MemoryKind, region?: RemoteRegionInfo): string | undefined {
    return kind === 'host' ? this.#host.whyNotRemote(kind, region) : undefined;
  }

  describePath(memory: readonly PathMemory[]): string | undefined {
    if (this.#context.stagesHostMemory === true) return STAGED;
    const locals = memory.flatMap(({ local }) => (local instanceof StagedRegion ? [local] : []));
    const why = locals.find(({ host }) => host === undefined)?.why;
    if (why !== undefined) return `${STAGED}: ${why}`;
    const isStaged = memory.some(({ remote }) => remote !== undefined && namesStagedMemory(remote));
    if (isStaged) return `${STAGED}: the peer stages its memory`;
    return this.#host.describePath?.([
      ...memory.filter(({ remote }) => remote !== undefined),
      ...locals.map(({ kind, host }) => ({ kind, local: host })),
    ]);
  }

  /** It takes a thread, pinned memory and kernels, which transfers within a host do without. */
  isOptionalFor({ kind }: AgentMemory): boolean {
    return kind === 'cuda';
  }

  async register(memory: AgentMemory): Promise<StagedRegion> {
    const thread = (): Promise<StagingThread> => this.#staging();
    const { address, bytes, device } = memory;
    const ordinal = device instanceof CudaDevice ? device.context.ordinal : undefined;
    const { host, why } = await this.#registerDirectly(memory);
    if (host !== undefined) {
      return new StagedRegion({ memory, host, why, info: host.info, thread, number: undefined, ordinal });
    }
    const staging = await thread();
    const { number, key } = await staging.call('register', { address, bytes, ordinal, isOffered: true });
    const info = encodeStagedRegion({ number, key, connectionInfo: staging.connectionInfo });
    return new StagedRegion({ memory, host: undefined, why, info, thread, number, ordinal });
  }

  /** What the backend itself makes of the memory, or why it is staged. */
  async #registerDirectly(memory: AgentMemory): Promise<Pick<StagedRegionParts, 'host' | 'why'>> {
    if (this.#context.stagesHostMemory === true) return { host: undefined, why: undefined };
    const why = memory.kind === 'host' ? undefined : this.#host.whyNotMemory(memory);
    if (why !== undefined) return { host: undefined, why };
    try {
      return { host: await this.#host.register(memory), why: undefined };
    } catch (error) {
      // A device that offers the way may lack what this memory needs, such as room in the GPU's window on the PCI bus.
      if (memory.kind === 'host' || this.#context.settings.rdmaGpuMemory !== 'auto') throw error;
      const { message } = asWeftlineError(error);
      log('agent', 'warn', `memory of a GPU is ${STAGED}: ${message}`);
      return { host: undefined, why: message };
    }
  }

  async connect(peer: BackendPeer, options: ConnectOptions): Promise<StagedLink> {
    const host = await this.#host.connect(peer, options);
    const { timeoutMs } = this.#context.settings;
    return new StagedLink({ host, peer, timeoutMs, thread: () => this.#staging() });
  }

  poll(): boolean {
    const hasNews = this.#host.poll();
    const news = this.#thread?.board.news ?? 0;
    if (news === this.#news) return hasNews;
    this.#news = news;
    return true;
  }

  get prefersPolling(): boolean {
    return this.#host.prefersPolling === true;
  }

  help(): boolean {
    return this.#host.help?.() === true;
  }

  nap(milliseconds: number): boolean {
    return this.#host.nap?.(milliseconds) === true;
  }

  prepareSleep(): number {
    return this.#host.prepareSleep();
  }

  unref(): void {
    this.#host.unref?.();
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    // Whoever asked for a thread that did not start has heard why.
    const stopping = this.#starting?.then(
      (thread) => thread.stop(),
      () => {},
    );
    const ends = await Promise.allSettled([stopping, this.#host.close()]);
    for (const end of ends) if (end.status === 'rejected') throw end.reason;
  }

  /** Started when memory is staged for the first time. */
  async #staging(): Promise<StagingThread> {
    this.#starting ??= StagingThread.start(this.name, this.#context);
    try {
      this.#thread = await this.#starting;
      return this.#thread;
    } catch (error) {
      this.#starting = undefined;
      throw error;
    }
  }
}
