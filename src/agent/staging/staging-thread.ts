// The staging thread as the agent's thread has it: started at the first need, called, told, and heard of.
import { decodeError, type EncodedError, WeftlineError } from '../../core/errors.ts';
import { packageFile } from '../../core/package-file.ts';
import { readSettings, type Settings } from '../../settings/settings.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { type ArgumentOf, type Calls, type ResultOf, WorkerLink } from '../../threads/worker-link.ts';
import type { BackendContext, BackendLink, BackendPeer, TransferOperation } from '../backend.ts';
import { MAX_STAGED, StagedMessages, stagedStates, StagingBoard } from './staging-board.ts';

/** What the thread is started with. */
export interface StagingThreadData {
  /** The backend's name in the table of backends. */
  readonly backend: string;
  readonly agentName: string;
  readonly incarnation: string;
  readonly settings: Settings;
  readonly token: string;
  readonly host: string;
  /** Memory of the thread's own WakeWord, of the agent's, and of the StagingBoard. */
  readonly wake: SharedArrayBuffer;
  readonly agentWake: SharedArrayBuffer;
  readonly board: SharedArrayBuffer;
}

export interface StagedMemoryOptions {
  readonly address: number;
  readonly bytes: number;
  /** The GPU that owns it; undefined of host memory. */
  readonly ordinal: number | undefined;
  /** Peers may name it. */
  readonly isOffered: boolean;
}

export interface LaneOptions {
  readonly number: number;
  /** The peer as its metadata describe it. */
  readonly peer: BackendPeer;
  /** The address of the peer's staging thread: pieces go there. Undefined: they go to and from host memory of the peer's agent. */
  readonly connectionInfo: Uint8Array | undefined;
  /** Memory of GPUs of this side goes through it. */
  readonly isPinned: boolean;
  /** Memory of the lane's StagedMessages. */
  readonly messages: SharedArrayBuffer;
  readonly timeoutMs: number;
}

/** What the peer's staging thread calls its memory. */
export interface StagedName {
  readonly number: number;
  readonly key: number;
}

/** Memory of a peer: staged there, or what its agent's backend published of it. */
export type RemoteMemoryName = StagedName | { readonly info: Uint8Array; readonly bytes: number };

export interface StagedPlan {
  readonly number: number;
  readonly lane: number;
  readonly operation: TransferOperation;
  /** Numbers of staged memory. */
  readonly locals: readonly number[];
  readonly remotes: readonly RemoteMemoryName[];
  /** Memory of the PartTable, and whether it is written anew before each post. */
  readonly parts: SharedArrayBuffer;
  readonly isBySelection: boolean;
}

/** Numbers are the caller's, but for those of memory. */
export interface StagingCalls extends Calls {
  /** Returns how peers' staging threads reach the thread's backend. */
  start(): Uint8Array;
  register(memory: StagedMemoryOptions): Promise<StagedName>;
  /** Resolves when no device and no peer touches the memory any more. */
  release(memory: number): Promise<void>;
  openLane(options: LaneOptions, signal: AbortSignal): Promise<void>;
  prepare(plan: StagedPlan): Promise<void>;
  /** `rows`: memory of a PartTable of STAGED_OPERATIONS rows, one for each operation in turn. */
  openChannel(options: { readonly number: number; readonly lane: number; readonly rows: SharedArrayBuffer }): void;
  /** The number by which rows of the channel name the peer's memory. */
  importRemote(options: { readonly channel: number; readonly remote: RemoteMemoryName }): number;
  /** Ends a lane, a transfer or a channel. */
  close(number: number): Promise<void>;
  stop(): Promise<void>;
}

/** Why the lane, transfer or channel of that number failed. Sent before the board says that it did. */
export interface StagingEvent {
  readonly number: number;
  readonly error: EncodedError;
}

export class StagingThread {
  readonly board: StagingBoard = new StagingBoard();
  /** How staging threads of peers reach it. */
  connectionInfo: Uint8Array = new Uint8Array();
  readonly #wake = new WakeWord();
  readonly #link: WorkerLink<StagingCalls, StagingEvent>;
  readonly #free: number[] = Array.from({ length: MAX_STAGED }, (_, index) => MAX_STAGED - 1 - index);
  readonly #errors = new Map<number, WeftlineError>();

  static async start(backend: string, context: BackendContext): Promise<StagingThread> {
    const thread = new StagingThread(backend, context);
    try {
      thread.connectionInfo = await thread.call('start');
      return thread;
    } catch (error) {
      await thread.stop().catch(() => {});
      throw error;
    }
  }

  private constructor(backend: string, context: BackendContext) {
    const { agentName, incarnation, settings, token, host, wake: agentWake } = context;
    const shared = { wake: this.#wake.buffer, agentWake: agentWake.buffer, board: this.board.buffer };
    const data: StagingThreadData = { backend, agentName, incarnation, settings, token, host, ...shared };
    this.#link = new WorkerLink<StagingCalls, StagingEvent>({
      entry: packageFile('./staging-worker.js', import.meta.url),
      name: 'staging',
      what: 'thread that stages memory of devices',
      closedMessage: `Agent ${agentName} was closed`,
      data,
      // An agent may be given less than it takes to start a thread; its own calls have their own deadlines.
      timeoutMs: Math.max(settings.timeoutMs, readSettings().timeoutMs),
      lateReason: 'it waits for a peer or a device',
      onCall: () => this.#wake.ring(),
      onEvent: ({ number, error }) => this.#errors.set(number, decodeError(error)),
      onEnd: () => agentWake.ring(),
    });
  }

  /** Why it does nothing any more; undefined while it does. */
  get failure(): WeftlineError | undefined {
    return this.#link.failure;
  }

  call<Name extends keyof StagingCalls>(
    name: Name,
    ...argument: ArgumentOf<StagingCalls, Name>
  ): Promise<ResultOf<StagingCalls, Name>> {
    return this.#link.call(name, ...argument);
  }

  /** Hot path. The board must have room. */
  push(number: number, message: number): void {
    this.board.push(number, message);
    this.#wake.ring();
  }

  /** A number for a lane, a transfer or a channel, which `make` has the thread make. Fails with WL_CAPACITY. */
  async take(make: (number: number) => Promise<unknown>): Promise<number> {
    const number = this.#free.pop();
    if (number === undefined) {
      throw new WeftlineError(
        'WL_CAPACITY',
        `At most ${MAX_STAGED} prepared transfers and channels are staged: release some first`,
      );
    }
    try {
      await make(number);
      return number;
    } catch (error) {
      this.giveBack(number);
      throw error;
    }
  }

  giveBack(number: number): void {
    this.#errors.delete(number);
    this.board.states[number] = stagedStates.idle;
    this.board.delivered[number] = 0;
    this.#free.push(number);
  }

  /** Why what has the number failed, if it did; or the thread. */
  errorOf(number: number): WeftlineError | undefined {
    if (Atomics.load(this.board.states, number) !== stagedStates.failed) return this.failure;
    // It was sent before the board told of it, but its message may wait to be read; what is here may be of an earlier post.
    this.#link.readMessages();
    return this.#errors.get(number) ?? this.failure;
  }

  stop(): Promise<void> {
    return this.#link.stop();
  }
}

/** Has the thread give something up. One that has ended holds nothing. */
export async function giveUp(
  thread: Pick<StagingThread, 'call' | 'failure'>,
  name: 'close' | 'release',
  number: number,
): Promise<void> {
  try {
    if (thread.failure === undefined) await thread.call(name, number);
  } catch (error) {
    if (thread.failure === undefined) throw error;
  }
}

/** A lane as the agent's thread has it: its number, and the ring of messages of its transfers. */
export class AgentLane {
  readonly thread: StagingThread;
  readonly number: number;
  readonly peer: string;
  readonly isPinned: boolean;
  readonly messages: StagedMessages;
  /** That it belongs to. */
  readonly link: Pick<BackendLink, 'error'>;
  #isClosed = false;

  static async open(
    thread: StagingThread,
    link: Pick<BackendLink, 'error'>,
    options: Omit<LaneOptions, 'number' | 'messages'>,
  ): Promise<AgentLane> {
    const messages = new StagedMessages();
    const made = { ...options, messages: messages.buffer };
    const number = await thread.take((taken) => thread.call('openLane', { ...made, number: taken }));
    const { peer, isPinned } = options;
    return new AgentLane({ thread, number, peer: peer.name, isPinned, messages, link });
  }

  private constructor(parts: Pick<AgentLane, 'thread' | 'number' | 'peer' | 'isPinned' | 'messages' | 'link'>) {
    this.thread = parts.thread;
    this.number = parts.number;
    this.peer = parts.peer;
    this.isPinned = parts.isPinned;
    this.messages = parts.messages;
    this.link = parts.link;
  }

  /** Why nothing goes on it any more. */
  get error(): WeftlineError | undefined {
    return this.#isClosed ? undefined : this.thread.errorOf(this.number);
  }

  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    await giveUp(this.thread, 'close', this.number);
    this.thread.giveBack(this.number);
  }
}
