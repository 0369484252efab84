// What a staging thread has and does: a backend of its own, memory, lanes to peers, transfers and channels on them.
import { Deadline } from '../../core/deadline.ts';
import { asWeftlineError, type EncodedError, encodeError, WeftlineError } from '../../core/errors.ts';
import { viewAt } from '../../native/library.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { PartTable } from '../../transport/part-table.ts';
import { hostIdentity } from '../../world/host-identity.ts';
import type {
  AgentMemory,
  Backend,
  BackendContext,
  BackendRegion,
  BackendRemoteRegion,
  CreateBackend,
} from '../backend.ts';
import { stagedStates, StagingBoard, stagingCommandField, stagingCommandKinds } from './staging-board.ts';
import { CopyRun, DeviceTable, type OpenGpu } from './device-copies.ts';
import { Greeter, untilTrue } from './greeter.ts';
import { InnerLinks } from './inner-links.ts';
import { MemoryTable, type StagedMemory } from './memory-table.ts';
import {
  DirectTransfer,
  PiecePlan,
  type Prepared,
  SessionTransfer,
  SlotTransfers,
  stagedName,
} from './planned-transfers.ts';
import { ReceiveSessions } from './receive-sessions.ts';
import { plainStorage, type RingShape, ringShapeOf } from './ring-memory.ts';
import { SendLane } from './send-lane.ts';
import type {
  LaneOptions,
  RemoteMemoryName,
  StagedMemoryOptions,
  StagedPlan,
  StagingEvent,
  StagingThreadData,
} from './staging-messages.ts';
import { ThreadChannel } from './thread-channel.ts';
import { MAX_PIECE_FRAGMENTS } from './wire-layout.ts';

interface Entry {
  readonly transfer: number;
  readonly error: WeftlineError;
  readonly isOver: () => boolean;
}

/** Failed posts of transfers whose memory devices of this side may still touch: they are told of when that is over. */
class Settling {
  readonly #onOver: (transfer: number, error: WeftlineError) => void;
  #entries: Entry[] = [];

  constructor(onOver: (transfer: number, error: WeftlineError) => void) {
    this.#onOver = onOver;
  }

  /** `isOver` tells when devices have done what they had to do at the time of the call. */
  add(entry: Entry): void {
    this.#entries.push(entry);
    this.look();
  }

  has(transfer: number): boolean {
    return this.#entries.some((entry) => entry.transfer === transfer);
  }

  look(): void {
    if (this.#entries.length === 0) return;
    const over = this.#entries.filter((entry) => entry.isOver());
    if (over.length === 0) return;
    this.#entries = this.#entries.filter((entry) => !over.includes(entry));
    for (const { transfer, error } of over) this.#onOver(transfer, error);
  }
}

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

/** Resolves when nothing that is on its way now is read from that memory any more. Fails with WL_TIMEOUT. */
async function untilSent(
  memory: readonly StagedMemory[],
  lanes: Iterable<SendLane>,
  deadline: Deadline,
): Promise<void> {
  if (memory.every(({ region }) => region === undefined)) return;
  const fences = [...lanes].flatMap(({ session }) => (session === undefined ? [] : [session.fence()]));
  await untilTrue(() => fences.every((isOver) => isOver()), deadline, 'What is sent from host memory');
}

interface StagingHostOptions {
  readonly data: StagingThreadData;
  readonly createBackend: CreateBackend;
  readonly openGpu: OpenGpu;
  readonly wake: WakeWord;
  readonly tell: (event: StagingEvent) => void;
}

/** How soon a message is tried again that the peer did not take. */
const STUCK_MESSAGE_MS = 1;

export class StagingHost {
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
  readonly #run = new CopyRun(MAX_PIECE_FRAGMENTS);
  readonly #lanes = new Map<number, SendLane>();
  /** Lanes that fail for good and have told the agent. */
  readonly #failedLanes = new WeakSet<SendLane>();
  readonly #prepared: (Prepared | undefined)[] = [];
  readonly #channels: (ThreadChannel | undefined)[] = [];
  /** The place of the put that is being posted. */
  readonly #place = { localOffset: 0, remoteOffset: 0, bytes: 0 };
  readonly #settling = new Settling((transfer, error) => this.#publish(transfer, error));
  #nextLane = 1;

  static async create(options: StagingHostOptions): Promise<StagingHost> {
    const { data, createBackend, wake } = options;
    let host: StagingHost | undefined;
    const context: BackendContext = {
      agentName: data.agentName,
      incarnation: data.incarnation,
      settings: data.settings,
      token: data.token,
      host: data.host,
      ownThread: true,
      wake,
      deliver: (peer, message) => host?.hear(peer, message),
      mayDeliver: () => true,
    };
    host = new StagingHost(options, await createBackend(context));
    return host;
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
      self: () => ({ incarnation, host: hostIdentity(), process: process.pid, connectionInfo }),
      onHello: (peer, hello) => void this.#receivers.receive(peer, hello),
      onSenderLeft: (peer, lane, why) => this.#receivers.leave(peer, lane, why),
      onReceiverLeft: (peer, lane, why) => this.#receiverLeft(peer, lane, why),
    });
    this.#receivers = new ReceiveSessions({
      backend,
      links: this.#links,
      greeter: this.#greeter,
      memory: this.#memory,
      devices: this.#devices,
      run: this.#run,
      fence: () => this.#fence(),
    });
  }

  get connectionInfo(): Uint8Array {
    return this.#backend.connectionInfo;
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
    if (this.#carryOut()) hasNews = true;
    if (this.#receivers.step()) hasNews = true;
    for (const lane of this.#lanes.values()) {
      if (lane.step()) hasNews = true;
      if (lane.lane.error !== undefined && !this.#failedLanes.has(lane)) this.#laneFailed(lane, lane.lane.error);
    }
    this.#settling.look();
    return hasNews;
  }

  hear(peer: string, message: Uint8Array): void {
    this.#greeter.hear(peer, message);
  }

  async register({
    address,
    bytes,
    ordinal,
    isOffered,
  }: StagedMemoryOptions): Promise<Pick<StagedMemory, 'number' | 'key'>> {
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
    this.#carryOut();
    const memory = this.#memory.get(number);
    memory.isOpen = false;
    const error = new WeftlineError('WL_CLOSED', 'The registration of the memory was closed');
    for (const [transfer, prepared] of this.#prepared.entries()) {
      if (prepared?.job.locals.includes(memory) === true) this.#end(transfer, error);
    }
    for (const channel of this.#channels) if (channel?.uses(memory) === true) channel.fail(error);
    await this.#fence();
    await untilSent([memory], this.#lanes.values(), this.#deadline());
    await memory.region?.release();
    this.#memory.remove(memory);
  }

  async openLane(options: LaneOptions, signal: AbortSignal): Promise<number> {
    const number = this.#nextLane++;
    const parts = {
      number,
      backend: this.#backend,
      links: this.#links,
      greeter: this.#greeter,
      shape: this.#shape,
      makeStorage: options.isPinned ? this.#devices.makeStorage : plainStorage,
      signal,
    };
    const lane = await SendLane.open(options, parts);
    if (signal.aborted) {
      // Nobody waits for it any more.
      const error = new WeftlineError('WL_CLOSED', `The wait for the link to ${lane.peer} was ended`);
      await lane.close(error, () => this.#fence());
      throw error;
    }
    this.#lanes.set(number, lane);
    return number;
  }

  async closeLane(number: number): Promise<void> {
    this.#carryOut();
    const lane = this.#lanes.get(number);
    if (lane === undefined) return;
    this.#failedLanes.add(lane);
    this.#lanes.delete(number);
    await lane.close(new WeftlineError('WL_CLOSED', `The link to ${lane.peer} was closed`), () => this.#fence());
  }

  async prepare(staged: StagedPlan): Promise<void> {
    const { transfer, operation, remotes, isBySelection } = staged;
    const lane = this.#lane(staged.lane);
    const locals = staged.locals.map((local) => this.#memory.get(local));
    const { pieceBytes } = this.#shape;
    const deviceOf = locals.map(({ copies }) => copies);
    const parts = PartTable.over(staged.parts);
    const onEnd = (error: WeftlineError | undefined): void => this.#ended(transfer, error);
    const { session, ring, link, local } = lane;
    const own = session === undefined ? remotes.map((remote) => this.#host(lane, remote)) : [];
    const slots =
      session === undefined ? await SlotTransfers.prepare({ link, operation, ring, local, remotes: own }) : undefined;
    const names = session === undefined ? [] : remotes.map(stagedName);
    const make = (): Prepared['job'] => {
      const plan = new PiecePlan(parts, { pieceBytes, deviceOf });
      const common = { transfer, operation, plan, locals, ring, run: this.#run, onEnd };
      if (session !== undefined) return new SessionTransfer(common, session, names);
      return new DirectTransfer(common, slots as SlotTransfers);
    };
    this.#prepared[transfer] = { lane, job: make(), renew: isBySelection ? make : undefined };
  }

  async unprepare(transfer: number): Promise<void> {
    this.#carryOut();
    const prepared = this.#prepared[transfer];
    if (prepared === undefined) return;
    this.#end(transfer, new WeftlineError('WL_CLOSED', 'The transfer was closed'));
    await untilTrue(() => !this.#settling.has(transfer), this.#deadline(), 'The work of a device for a transfer');
    if (prepared.job instanceof DirectTransfer) await prepared.job.transfers.release();
    else await untilSent(prepared.job.locals, this.#lanes.values(), this.#deadline());
    this.#prepared[transfer] = undefined;
  }

  openChannel(lane: number, number: number): void {
    this.#board.delivered[number] = 0;
    this.#board.failed[number] = 0;
    this.#channels[number] = new ThreadChannel(this.#lane(lane), {
      run: this.#run,
      onDelivered: (count) => {
        Atomics.store(this.#board.delivered, number, count | 0);
        this.#tellAgent();
      },
      onFailed: (error) => {
        this.#options.tell({ channel: number, error: encodeError(error) });
        Atomics.store(this.#board.failed, number, 1);
        this.#tellAgent();
      },
    });
  }

  importRemote(number: number, remote: RemoteMemoryName): number {
    const channel = this.#channels[number];
    if (channel === undefined) throw new WeftlineError('WL_CLOSED', 'The channel was closed');
    const { lane, remotes } = channel;
    remotes.push(lane.session === undefined ? this.#host(lane, remote) : stagedName(remote));
    return remotes.length - 1;
  }

  async closeChannel(number: number): Promise<void> {
    this.#carryOut();
    const channel = this.#channels[number];
    this.#channels[number] = undefined;
    await channel?.close();
  }

  async close(): Promise<void> {
    const error = new WeftlineError('WL_CLOSED', `Agent ${this.#options.data.agentName} was closed`);
    await Promise.allSettled([...this.#lanes.keys()].map((lane) => this.closeLane(lane)));
    await this.#receivers.close(error);
    await this.#backend.close();
    await this.#devices.close();
  }

  #carryOut(): boolean {
    const board = this.#board;
    const { commands } = board;
    const field = stagingCommandField;
    let count = 0;
    for (let at = board.next; at >= 0; at = board.next) {
      const kind = commands[at + field.kind]!;
      const number = commands[at + field.number]!;
      if (kind === stagingCommandKinds.post) this.#post(number, commands[at + field.message]!);
      else if (kind === stagingCommandKinds.cancel) this.#cancel(number);
      else this.#operate(number, kind, at);
      board.take();
      count++;
    }
    return count > 0;
  }

  #post(transfer: number, messageBytes: number): void {
    const prepared = this.#prepared[transfer];
    if (prepared === undefined) return;
    if (prepared.renew !== undefined) prepared.job = prepared.renew();
    const { lane, job } = prepared;
    if (messageBytes >= 0) lane.messages.add(transfer, messageBytes);
    job.begin();
    lane.lane.enqueue(job);
  }

  #cancel(transfer: number): void {
    const peer = this.#prepared[transfer]?.lane.peer;
    this.#end(transfer, new WeftlineError('WL_CLOSED', `A transfer with ${peer} was cancelled`));
  }

  #operate(number: number, kind: number, at: number): void {
    const channel = this.#channels[number];
    if (channel === undefined) return;
    const { commands } = this.#board;
    const field = stagingCommandField;
    const remote = channel.remotes[commands[at + field.remote]!];
    const remoteOffset = commands[at + field.remoteOffset]!;
    try {
      if (kind === stagingCommandKinds.signal) {
        channel.signal(remote, remoteOffset, commands[at + field.add]!, commands[at + field.sum]!);
      } else {
        const place = this.#place;
        place.localOffset = commands[at + field.localOffset]!;
        place.remoteOffset = remoteOffset;
        place.bytes = commands[at + field.bytes]!;
        channel.put(this.#memory.get(commands[at + field.local]!), remote, place);
      }
    } catch (error) {
      channel.fail(asWeftlineError(error));
    }
  }

  /** Breaks off what the transfer does. */
  #end(transfer: number, error: WeftlineError): void {
    const prepared = this.#prepared[transfer];
    if (prepared === undefined || prepared.job.isOver) return;
    prepared.lane.lane.end(prepared.job, error);
    if (prepared.job instanceof DirectTransfer) prepared.job.transfers.cancel();
  }

  /** Notes that a post has ended. */
  #ended(transfer: number, error: WeftlineError | undefined): void {
    this.#prepared[transfer]?.lane.messages.settle(transfer, error === undefined);
    if (error === undefined) {
      Atomics.store(this.#board.states, transfer, stagedStates.done);
      this.#tellAgent();
      return;
    }
    this.#settling.add({ transfer, error, isOver: this.#devices.fence() });
  }

  #publish(transfer: number, thrown: WeftlineError): void {
    const error: EncodedError = encodeError(thrown);
    // ORDER: the error before the state that tells of it.
    this.#options.tell({ transfer, error });
    Atomics.store(this.#board.states, transfer, stagedStates.failed);
    this.#tellAgent();
  }

  #receiverLeft(peer: string, number: number, why: WeftlineError): void {
    const lane = this.#lanes.get(number);
    if (lane?.peer === peer) lane.lane.fail(why);
  }

  #laneFailed(lane: SendLane, error: WeftlineError): void {
    this.#failedLanes.add(lane);
    for (const channel of this.#channels) if (channel?.lane === lane) channel.fail(error);
    this.#options.tell({ lane: lane.number, error: encodeError(error) });
    this.#tellAgent();
  }

  #tellAgent(): void {
    this.#board.tell();
    this.#agentWake.ring();
  }

  #fence(): Promise<void> {
    return untilTrue(this.#devices.fence(), this.#deadline(), 'The work of a device');
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

  #host(lane: SendLane, remote: RemoteMemoryName): BackendRemoteRegion {
    if ('info' in remote) return lane.importHost(remote.info, remote.bytes);
    throw new WeftlineError('WL_INTERNAL', 'Staged memory of a peer was named on a lane to its host memory');
  }
}
