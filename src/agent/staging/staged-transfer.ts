// A transfer that the staging thread carries out: posted with one command. Hot path of post and state: no allocation.
import { stagedStates, stagingCommandField, stagingCommandKinds } from './board-layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { BackendTransfer, TransferState } from '../backend.ts';
import type { AgentLane } from './agent-lane.ts';
import type { StagedPlan } from './staging-messages.ts';

const names: readonly TransferState[] = ['idle', 'pending', 'done', 'failed'];

export class StagedTransfer implements BackendTransfer {
  readonly #lane: AgentLane;
  readonly #number: number;
  #isReleased = false;
  #releasing: Promise<void> | undefined;
  /** What it had come to when it was released. */
  #last: TransferState | undefined;
  #lastError: WeftlineError | undefined;

  static async prepare(lane: AgentLane, plan: Omit<StagedPlan, 'lane' | 'transfer'>): Promise<StagedTransfer> {
    const { thread } = lane;
    const transfer = thread.takeTransfer();
    try {
      await thread.call('prepare', { ...plan, lane: lane.number, transfer });
    } catch (error) {
      thread.giveTransferBack(transfer);
      throw error;
    }
    return new StagedTransfer(lane, transfer);
  }

  private constructor(lane: AgentLane, number: number) {
    this.#lane = lane;
    this.#number = number;
  }

  get state(): TransferState {
    if (this.#last !== undefined) return this.#last;
    const state = Atomics.load(this.#lane.thread.board.states, this.#number);
    if (state === stagedStates.pending && this.#lane.thread.failure !== undefined) return 'failed';
    return names[state] as TransferState;
  }

  get error(): WeftlineError | undefined {
    if (this.#last !== undefined) return this.#lastError;
    return this.state === 'failed' ? this.#lane.thread.transferError(this.#number) : undefined;
  }

  post(message?: Uint8Array): void {
    if (this.#isReleased) throw new WeftlineError('WL_CLOSED', 'The transfer was released');
    const lane = this.#lane;
    const error = lane.link.error ?? lane.error;
    if (error !== undefined) throw error;
    const { thread } = lane;
    const { board } = thread;
    const at = board.place;
    if (at < 0 || (message !== undefined && !lane.messages.write(message))) throw this.#busy(at < 0);
    const { commands } = board;
    commands[at + stagingCommandField.kind] = stagingCommandKinds.post;
    commands[at + stagingCommandField.number] = this.#number;
    commands[at + stagingCommandField.message] = message === undefined ? -1 : message.length;
    board.states[this.#number] = stagedStates.pending;
    thread.push();
  }

  cancel(): void {
    const { thread } = this.#lane;
    const at = thread.board.place;
    if (this.state !== 'pending' || at < 0) return;
    const { commands } = thread.board;
    commands[at + stagingCommandField.kind] = stagingCommandKinds.cancel;
    commands[at + stagingCommandField.number] = this.#number;
    thread.push();
  }

  release(): Promise<void> {
    this.#isReleased = true;
    // A device that is late now may be done when it is released again.
    this.#releasing ??= this.#release().catch((error: unknown) => {
      this.#releasing = undefined;
      throw error;
    });
    return this.#releasing;
  }

  async #release(): Promise<void> {
    const { thread } = this.#lane;
    try {
      if (thread.failure === undefined) await thread.call('unprepare', this.#number);
    } catch (error) {
      if (thread.failure === undefined) throw error;
    }
    const { state, error } = this;
    this.#last = state;
    this.#lastError = error;
    thread.giveTransferBack(this.#number);
  }

  #busy(isFull: boolean): WeftlineError {
    const { peer } = this.#lane;
    const why = isFull ? 'too many operations are under way' : `${peer} has not taken earlier messages`;
    return new WeftlineError('WL_BUSY', `Cannot post to ${peer}: ${why}; wait for earlier ones`, { details: { peer } });
  }
}
