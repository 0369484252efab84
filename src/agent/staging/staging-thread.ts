// The staging thread as the agent's thread has it: started at the first need, called, told, and heard of.
import { STAGED_CHANNELS, STAGED_TRANSFERS, StagingBoard } from './staging-board.ts';
import { decodeError, WeftlineError } from '../../core/errors.ts';
import { packageFile } from '../../core/package-file.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { type ArgumentOf, type ResultOf, WorkerLink } from '../../threads/worker-link.ts';
import { readSettings } from '../../settings/settings.ts';
import type { BackendContext } from '../backend.ts';
import type { StagingCalls, StagingEvent, StagingThreadData } from './staging-messages.ts';

export class StagingThread {
  readonly board: StagingBoard = new StagingBoard();
  /** How staging threads of peers reach it. */
  readonly connectionInfo: Uint8Array;
  readonly #wake: WakeWord;
  readonly #link: WorkerLink<StagingCalls, StagingEvent>;
  readonly #transfers: number[] = countDown(STAGED_TRANSFERS);
  readonly #channels: number[] = countDown(STAGED_CHANNELS);
  readonly #transferErrors = new Map<number, WeftlineError>();
  readonly #channelErrors = new Map<number, WeftlineError>();
  readonly #laneErrors = new Map<number, WeftlineError>();

  static async start(backend: string, context: BackendContext): Promise<StagingThread> {
    const { agentName, incarnation, settings, token, host, wake: agentWake } = context;
    const wake = new WakeWord();
    const board = new StagingBoard();
    const data: StagingThreadData = {
      backend,
      agentName,
      incarnation,
      settings,
      token,
      host,
      wake: wake.buffer,
      agentWake: agentWake.buffer,
      board: board.buffer,
    };
    let thread: StagingThread | undefined;
    const link = new WorkerLink<StagingCalls, StagingEvent>({
      entry: packageFile('./staging-worker.js', import.meta.url),
      name: 'staging',
      what: 'thread that stages memory of devices',
      closedMessage: `Agent ${agentName} was closed`,
      data,
      // An agent may be given less than it takes to start a thread; its own calls have their own deadlines.
      timeoutMs: Math.max(settings.timeoutMs, readSettings().timeoutMs),
      lateReason: 'it waits for a peer or a device',
      onCall: () => wake.ring(),
      onEvent: (event) => thread?.hear(event),
      onEnd: () => agentWake.ring(),
    });
    try {
      thread = new StagingThread({ board, wake, link, connectionInfo: await link.call('start') });
      return thread;
    } catch (error) {
      await link.stop().catch(() => {});
      throw error;
    }
  }

  private constructor(parts: {
    readonly board: StagingBoard;
    readonly wake: WakeWord;
    readonly link: WorkerLink<StagingCalls, StagingEvent>;
    readonly connectionInfo: Uint8Array;
  }) {
    this.board = parts.board;
    this.#wake = parts.wake;
    this.#link = parts.link;
    this.connectionInfo = parts.connectionInfo;
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

  /** Hot path. A command was written at `board.place`. */
  push(): void {
    this.board.push();
    this.#wake.ring();
  }

  /** Fails with WL_CAPACITY. */
  takeTransfer(): number {
    const number = this.#transfers.pop();
    if (number !== undefined) return number;
    throw new WeftlineError(
      'WL_CAPACITY',
      `At most ${STAGED_TRANSFERS} prepared transfers are staged: release some first`,
    );
  }

  giveTransferBack(number: number): void {
    this.#transferErrors.delete(number);
    this.board.states[number] = 0;
    this.#transfers.push(number);
  }

  /** Fails with WL_CAPACITY. */
  takeChannel(): number {
    const number = this.#channels.pop();
    if (number !== undefined) return number;
    throw new WeftlineError('WL_CAPACITY', `At most ${STAGED_CHANNELS} channels are staged: close some first`);
  }

  giveChannelBack(number: number): void {
    this.#channelErrors.delete(number);
    this.#channels.push(number);
  }

  /** The error of a transfer whose state says that it failed. */
  transferError(number: number): WeftlineError | undefined {
    return this.#errorIn(this.#transferErrors, number);
  }

  channelError(number: number): WeftlineError | undefined {
    return this.#errorIn(this.#channelErrors, number);
  }

  /** Why nothing goes on the lane any more. */
  laneError(number: number): WeftlineError | undefined {
    return this.#laneErrors.get(number) ?? this.failure;
  }

  hear(event: StagingEvent): void {
    const error = decodeError(event.error);
    if ('transfer' in event) this.#transferErrors.set(event.transfer, error);
    else if ('channel' in event) this.#channelErrors.set(event.channel, error);
    else this.#laneErrors.set(event.lane, error);
  }

  stop(): Promise<void> {
    return this.#link.stop();
  }

  #errorIn(errors: ReadonlyMap<number, WeftlineError>, number: number): WeftlineError | undefined {
    // It was sent before the board told of it, but its message may wait to be read; what is here may be of an earlier post.
    this.#link.readMessages();
    return errors.get(number) ?? this.failure;
  }
}

function countDown(count: number): number[] {
  return Array.from({ length: count }, (_, index) => count - 1 - index);
}
