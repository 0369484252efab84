// A prepared transfer over UCX, as the agent has it.
import { slotStates } from '../../../abi/transport-command.ts';
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import { type Command, emptyCommand } from '../../../transport/host/shared-requests.ts';
import type { BackendTransfer, TransferState } from '../../backend.ts';
import { ucxCommands } from './host-calls.ts';
import type { UcxLink } from './ucx-link.ts';

const stateNames: Readonly<Record<number, TransferState>> = {
  [slotStates.free]: 'idle',
  [slotStates.pending]: 'pending',
  [slotStates.done]: 'done',
  [slotStates.failed]: 'failed',
};

export class UcxTransfer implements BackendTransfer {
  readonly #link: UcxLink;
  readonly #slot: number;
  readonly #command: Command = emptyCommand();
  #release: Promise<void> | undefined;

  constructor(link: UcxLink, slot: number) {
    this.#link = link;
    this.#slot = slot;
    this.#command.slot = slot;
    this.#command.connection = link.number;
  }

  post(message?: Uint8Array): void {
    const { backend, error } = this.#link;
    const { requests, failure } = backend.engine;
    if (error !== undefined) throw error;
    if (failure !== undefined) throw failure;
    if (this.#release !== undefined) throw new WeftlineError('WL_CLOSED', 'The transfer was released');
    const before = requests.stateOf(this.#slot);
    if (before === slotStates.pending) throw invalidArgument('transfer', 'pending', 'one that is not under way');
    const command = this.#command;
    command.kind = ucxCommands.post;
    command.bytes = 0;
    if (message !== undefined) this.#link.writeMessage(message, command);
    backend.errors.delete(this.#slot);
    requests.open(this.#slot);
    if (!requests.put(command)) {
      requests.release(this.#slot);
      throw new WeftlineError('WL_CAPACITY', 'Too many operations are under way: wait for earlier ones');
    }
    if (message !== undefined) this.#link.sentMessage(command);
    backend.engine.nudge();
  }

  get state(): TransferState {
    return stateNames[this.#link.backend.engine.requests.stateOf(this.#slot)] ?? 'idle';
  }

  get error(): WeftlineError | undefined {
    if (this.state !== 'failed') return undefined;
    const { errors, engine } = this.#link.backend;
    if (!errors.has(this.#slot)) engine.readEvents();
    return errors.get(this.#slot) ?? this.#link.error;
  }

  cancel(): void {
    const { engine } = this.#link.backend;
    if (this.state !== 'pending' || this.#release !== undefined) return;
    this.#command.kind = ucxCommands.cancel;
    if (engine.requests.put(this.#command)) engine.nudge();
  }

  release(): Promise<void> {
    this.#release ??= this.#forget();
    return this.#release;
  }

  async #forget(): Promise<void> {
    const { backend } = this.#link;
    if (backend.engine.failure === undefined) {
      await backend.drain('transfer', this.#slot, { name: 'forget', slot: this.#slot });
    }
    backend.engine.requests.release(this.#slot);
    backend.errors.delete(this.#slot);
    backend.slots.push(this.#slot);
  }
}
