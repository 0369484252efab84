// What a staging thread has and does: a backend of its own, memory, lanes to peers, transfers and channels on them.
import { Deadline } from '../../core/deadline.ts';
import { asWeftlineError, encodeError, WeftlineError } from '../../core/errors.ts';
import { viewAt } from '../../native/library.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { hostIdentity } from '../../world/host-identity.ts';
import type { AgentMemory, Backend, BackendContext, BackendRegion, CreateBackend } from '../backend.ts';
import { DeviceTable, MemoryTable, type OpenGpu } from './devices.ts';
import { Greeter, InnerLinks, untilTrue } from './greeter.ts';
import { type Prepared, PreparedChannel, PreparedTransfer } from './prepared.ts';
import { ReceiveSessions } from './receive-sessions.ts';
import { plainStorage, type RingShape, ringShapeOf } from './ring.ts';
import { SendLane } from './send-lane.ts';
import { CANCEL, stagedStates, StagingBoard } from './staging-board.ts';
import type {
  LaneOptions,
  RemoteMemoryName,
  StagedMemoryOptions,
  StagedName,
  StagedPlan,
  StagingCalls,
  StagingEvent,
  StagingThreadData,
} from './staging-thread.ts';

/** A view of more aborts Node 20. */
const MAX_BYTES = 2 ** 32 - 65_536;

/** Undefined where the backend cannot send from it: pieces of it are then copied to the ring. */
async function registerSent(
  backend: Backend,
  { address, bytes }: Pick<AgentMemory, 'address' | 'bytes'>,
): Promise<BackendRegion | undefined> {
  if (bytes > MAX_BYTES) return undefined;
  const view = new Uint8Array(viewAt(address, bytes));
  const memory: AgentMemory = { kind: 'host', address, bytes, view, device: undefined, shared: undefined };
  if (backend.whyNotMemory(memory) !== undefined) return undefined;
  return backend.register(memory).catch(() => undefined);
}

interface StagingHostOptions {
  readonly data: StagingThreadData;
  readonly createBackend: CreateBackend;
  readonly openGpu: OpenGpu;
  readonly wake: WakeWord;
  readonly tell: (event: StagingEvent) => void;
}

/** A post that failed while devices, or the peer, may still touch its memory: it is told of when `isOver`. */
interface Settling {
  readonly number: number;
  readonly error: WeftlineError;
  readonly isOver: () => boolean;
}

/** How soon a message is tried again that the peer did not take. */
const STUCK_MESSAGE_MS = 1;

export class StagingHost implements StagingCalls {
  isStopped = false;
  readonly #options: StagingHostOptions;
  readonly #board: StagingBoard;
  readonly #agentWake: WakeWord;
  readonly #backend: Backend;
  readonly #links: InnerLinks;
  readonly #greeter: Greeter;
  readonly #devices: DeviceTable;
  readonly #memory = new MemoryTable();
  readonly #receivers: ReceiveSessions;
  readonly #shape: RingShape;
  /** By number; those that have failed for good and have told the agent are open all the same. */
  readonly #lanes = new Map<number, SendLane>();
  readonly #failedLanes = new WeakSet<SendLane>();
  /** By number. */
  readonly #prepared: (Prepared | undefined)[] = [];
  readonly #settling = new Set<Settling>();
  #nextLane = 1;

  static async create(options: StagingHostOptions): Promise<StagingHost> {
    const { data, createBackend, wake } = options;
    let made: StagingHost | undefined;
    const context: BackendContext = {
      ...data,
      ownThread: true,
      wake,
      deliver: (peer, message) => made?.hear(peer, message),
      mayDeliver: () => true,
    };
    made = new StagingHost(options, await createBackend(context));
    return made;
  }

  private constructor(options: StagingHostOptions, backend: Backend) {
    const { data, openGpu } = options;
    const { settings, incarnation } = data;
    this.#options = options;
    this.#board = new StagingBoard(data.board);
    this.#agentWake = new WakeWord(data.agentWake);
    this.#backend = backend;
    this.#links = new InnerLinks(backend);
    this.#shape = ringShapeOf(settings, backend.lanes ?? 1);
    this.#devices = new DeviceTable((ordinal) => openGpu(ordinal, settings, this.#shape));
    const { connectionInfo } = backend;
    this.#greeter = new Greeter({
      self: { incarnation, host: hostIdentity(), process: process.pid, connectionInfo },
      onHello: (peer, hello) => void this.#receivers.receive(peer, hello),
      onLeft: (peer, from, number, why) => {
        if (from === 'sender') this.#receivers.leave(peer, number, why);
        else for (const lane of this.#lanes.values()) if (lane.id === number && lane.peer === peer) lane.lane.fail(why);
      },
    });
    this.#receivers = new ReceiveSessions({
      backend,
      links: this.#links,
      greeter: this.#greeter,
      memory: this.#memory,
      devices: this.#devices,
      fence: () => this.#fence(),
    });
  }

  /** Devices work, and nobody rings when they have ended. */
  get isDeviceBusy(): boolean {
    return this.#devices.isBusy;
  }

  /** How long the thread may sleep, in ms. */
  prepareSleep(): number {
    const pause = this.#backend.prepareSleep();
    // Nobody rings when a peer takes messages again.
    for (const { messages } of this.#lanes.values()) if (messages.isStuck) return Math.min(pause, STUCK_MESSAGE_MS);
    return pause;
  }

  /** Goes on with everything. True if something happened. */
  step(): boolean {
    let hasNews = this.#backend.poll();
    if (this.#board.take(this.#carryOut)) hasNews = true;
    if (this.#receivers.step()) hasNews = true;
    for (const lane of this.#lanes.values()) {
      if (lane.step()) hasNews = true;
      if (lane.lane.error !== undefined && !this.#failedLanes.has(lane)) this.#laneFailed(lane, lane.lane.error);
    }
    for (const settling of this.#settling) this.#settle(settling);
    return hasNews;
  }

  hear(peer: string, message: Uint8Array): void {
    this.#greeter.hear(peer, message);
  }

  start(): Uint8Array {
    return this.#backend.connectionInfo;
  }

  async register({ address, bytes, ordinal, isOffered }: StagedMemoryOptions): Promise<StagedName> {
    const copies = await this.#devices.copiesOf(ordinal);
    await copies.ready;
    // Memory that is offered is staged on both ways; other host memory is sent from its place.
    const isSent = ordinal === undefined && !isOffered;
    const region = isSent ? await registerSent(this.#backend, { address, bytes }) : undefined;
    const { number, key } = this.#memory.add({ address, bytes, copies, isOffered, region });
    return { number, key };
  }

  async release(number: number): Promise<void> {
    // What the agent posted before this call comes before it.
    this.#board.take(this.#carryOut);
    const memory = this.#memory.close(number);
    if (memory === undefined) return;
    const error = new WeftlineError('WL_CLOSED', 'The registration of the memory was closed');
    for (const prepared of this.#prepared) if (prepared?.uses(memory) === true) prepared.fail(error);
    await this.#fence();
    if (memory.region !== undefined) await this.#untilSent();
    await memory.region?.release();
    this.#memory.remove(memory);
  }

  async openLane(options: LaneOptions, signal: AbortSignal): Promise<void> {
    const lane = await SendLane.open(options, {
      id: this.#nextLane++,
      backend: this.#backend,
      links: this.#links,
      greeter: this.#greeter,
      shape: this.#shape,
      makeStorage: options.isPinned ? this.#devices.makeStorage : plainStorage,
      fence: () => this.#fence(),
      signal,
    });
    if (signal.aborted) {
      // Nobody waits for it any more.
      const error = new WeftlineError('WL_CLOSED', `The wait for the link to ${lane.peer} was ended`);
      await lane.close(error);
      throw error;
    }
    this.#lanes.set(options.number, lane);
  }

  async prepare(plan: StagedPlan): Promise<void> {
    const { number } = plan;
    const lane = this.#lane(plan.lane);
    const locals = plan.locals.map((local) => this.#memory.get(local));
    const remotes = plan.remotes.map((remote) => lane.memoryOf(remote));
    const onEnd = (error: WeftlineError | undefined): void => {
      if (error === undefined) {
        Atomics.store(this.#board.states, number, stagedStates.done);
        this.#tellAgent();
      } else {
        const isCopied = this.#devices.fence();
        const isBack = lane.lane.fence();
        this.#settle({ number, error, isOver: () => isBack() && isCopied() });
      }
    };
    this.#prepared[number] = await PreparedTransfer.make(lane, { plan, locals, remotes, onEnd });
  }

  openChannel({ number, lane, rows }: { number: number; lane: number; rows: SharedArrayBuffer }): void {
    this.#prepared[number] = new PreparedChannel(this.#lane(lane), {
      rows,
      memory: this.#memory,
      onDelivered: (count) => {
        Atomics.store(this.#board.delivered, number, count | 0);
        this.#tellAgent();
      },
      onFailed: (error) => this.#tellFailed(number, error),
    });
  }

  importRemote({ channel, remote }: { channel: number; remote: RemoteMemoryName }): number {
    const prepared = this.#prepared[channel];
    if (!(prepared instanceof PreparedChannel)) throw new WeftlineError('WL_CLOSED', 'The channel was closed');
    return prepared.remotes.push(prepared.lane.memoryOf(remote)) - 1;
  }

  async close(number: number): Promise<void> {
    this.#board.take(this.#carryOut);
    const lane = this.#lanes.get(number);
    this.#lanes.delete(number);
    await lane?.close(new WeftlineError('WL_CLOSED', `The link to ${lane.peer} was closed`));
    const prepared = this.#prepared[number];
    if (prepared === undefined) return;
    prepared.stop();
    const isSettled = (): boolean => ![...this.#settling].some((settling) => settling.number === number);
    await untilTrue(isSettled, this.#deadline(), 'The work of a device for a transfer');
    if (prepared.holdsPlaces) await this.#untilSent();
    await prepared.close();
    this.#prepared[number] = undefined;
  }

  async stop(): Promise<void> {
    try {
      await Promise.allSettled([...this.#lanes.keys()].map((lane) => this.close(lane)));
      await this.#receivers.close(new WeftlineError('WL_CLOSED', `Agent ${this.#options.data.agentName} was closed`));
      await this.#backend.close();
      await this.#devices.close();
    } finally {
      this.isStopped = true;
      this.#options.wake.ring();
    }
  }

  readonly #carryOut = (number: number, message: number): void => {
    const prepared = this.#prepared[number];
    if (prepared === undefined) return;
    try {
      if (message !== CANCEL) prepared.post(message);
      else prepared.fail(new WeftlineError('WL_CLOSED', `A transfer with ${prepared.lane.peer} was cancelled`));
    } catch (error) {
      prepared.fail(asWeftlineError(error));
    }
  };

  #laneFailed(lane: SendLane, error: WeftlineError): void {
    this.#failedLanes.add(lane);
    for (const prepared of this.#prepared) if (prepared?.lane === lane) prepared.fail(error);
    this.#tellFailed(lane.number, error);
  }

  #settle(settling: Settling): void {
    if (!settling.isOver()) this.#settling.add(settling);
    else {
      this.#settling.delete(settling);
      this.#tellFailed(settling.number, settling.error);
    }
  }

  #tellFailed(number: number, error: WeftlineError): void {
    // ORDER: the error before the state that tells of it.
    this.#options.tell({ number, error: encodeError(error) });
    Atomics.store(this.#board.states, number, stagedStates.failed);
    this.#tellAgent();
  }

  #tellAgent(): void {
    this.#board.tell();
    this.#agentWake.ring();
  }

  #fence(): Promise<void> {
    return untilTrue(this.#devices.fence(), this.#deadline(), 'The work of a device');
  }

  /** Resolves when nothing that is on its way now is read from its place any more. Fails with WL_TIMEOUT. */
  #untilSent(): Promise<void> {
    const fences = Array.from(this.#lanes.values(), ({ session }) => session?.fence());
    const isOver = (): boolean => fences.every((isSent) => isSent?.() !== false);
    return untilTrue(isOver, this.#deadline(), 'What is sent from host memory');
  }

  #deadline(): Deadline {
    return new Deadline(this.#options.data.settings.timeoutMs);
  }

  #lane(number: number): SendLane {
    const lane = this.#lanes.get(number);
    if (lane === undefined) throw new WeftlineError('WL_CLOSED', 'The link was closed');
    if (lane.lane.error !== undefined) throw lane.lane.error;
    return lane;
  }
}
