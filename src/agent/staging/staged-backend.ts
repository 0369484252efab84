// Memory of GPUs for backends that carry host memory: wraps one, and stages what it cannot carry by a thread of its own.
import { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type {
  AgentMemory,
  Backend,
  BackendContext,
  BackendPeer,
  ConnectOptions,
  CreateBackend,
  MemoryKind,
  RemoteRegionInfo,
} from '../backend.ts';
import { StagedLink } from './staged-link.ts';
import { encodeStagedRegion, StagedRegion } from './staged-region.ts';
import { StagingThread } from './staging-thread.ts';

/** The backend with memory of GPUs, staged where it cannot reach that itself. */
export function withDeviceMemory<Name extends string>(createBackend: CreateBackend<Name>): CreateBackend<Name> {
  return async (context) => {
    const host = await createBackend(context);
    return host.takesDeviceMemory === true ? host : new StagedBackend(host, context);
  };
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

  describePath(kinds: readonly MemoryKind[]): string | undefined {
    const isStaged = this.#context.stagesHostMemory === true || kinds.includes('cuda');
    return isStaged ? 'staged through pinned memory' : undefined;
  }

  /** It takes a thread, pinned memory and kernels, which transfers within a host do without. */
  isOptionalFor({ kind }: AgentMemory): boolean {
    return kind === 'cuda';
  }

  async register(memory: AgentMemory): Promise<StagedRegion> {
    const thread = (): Promise<StagingThread> => this.#staging();
    if (memory.kind === 'host' && this.#context.stagesHostMemory !== true) {
      const host = await this.#host.register(memory);
      return new StagedRegion({ memory, host, info: host.info, thread, number: undefined, ordinal: undefined });
    }
    const { address, bytes, device } = memory;
    const ordinal = device instanceof CudaDevice ? device.context.ordinal : undefined;
    const staging = await thread();
    const { number, key } = await staging.call('register', { address, bytes, ordinal, isOffered: true });
    const info = encodeStagedRegion({ number, key, connectionInfo: staging.connectionInfo });
    return new StagedRegion({ memory, host: undefined, info, thread, number, ordinal });
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
