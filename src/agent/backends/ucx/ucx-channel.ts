// Ordered puts and signals over UCX, as the agent posts them. Hot path: no allocation.
import { WeftlineError } from '../../../core/errors.ts';
import { type Command, emptyCommand } from '../../../transport/host/shared-requests.ts';
import type { BackendChannel, BackendRemoteRegion, PutPlace } from '../../backend.ts';
import { channelWords } from './host-channel.ts';
import { ucxCommands } from './host-calls.ts';
import type { UcxRegion } from './ucx-region.ts';
import type { UcxLink, UcxRemoteRegion } from './ucx-link.ts';

/** Operations under way; of more, `put` and `signal` say false. */
const MOST_PENDING = 1024;

export class UcxChannel implements BackendChannel {
  posted = 0;
  error: WeftlineError | undefined;
  readonly #link: UcxLink;
  readonly #number: number;
  readonly #words = new Int32Array(new SharedArrayBuffer(8));
  readonly #command: Command = emptyCommand();
  readonly #onClose: () => void;
  #closing: Promise<void> | undefined;

  constructor(link: UcxLink, number: number, onClose: () => void) {
    this.#link = link;
    this.#number = number;
    this.#onClose = onClose;
    this.#command.connection = number;
    this.error = link.error;
    if (link.error !== undefined) return;
    const words = this.#words.buffer;
    const plan = { channel: number, link: link.number, words };
    link.backend.engine.call({ name: 'openChannel', channel: plan }).catch((error: WeftlineError) => {
      this.error ??= error;
    });
  }

  put(place: PutPlace): boolean {
    const command = this.#command;
    const remote = place.remote as UcxRemoteRegion;
    command.kind = ucxCommands.put;
    command.offset = (place.local as UcxRegion).address + place.localOffset;
    command.bytes = place.bytes;
    command.remoteRegion = remote.number;
    command.remoteKey = remote.key;
    command.remoteOffset = place.remoteOffset;
    return this.#post();
  }

  signal(remote: BackendRemoteRegion, offset: number, add: number): boolean {
    const command = this.#command;
    const region = remote as UcxRemoteRegion;
    command.kind = ucxCommands.signal;
    command.bytes = add;
    command.remoteRegion = region.number;
    command.remoteKey = region.key;
    command.remoteOffset = offset;
    return this.#post();
  }

  get delivered(): number {
    const known = Atomics.load(this.#words, channelWords.delivered);
    // The word wraps; fewer are under way than half of it counts.
    return this.posted - ((this.posted - known) >>> 0);
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  #post(): boolean {
    const { engine } = this.#link.backend;
    if (this.error !== undefined) throw this.error;
    if (this.#closing !== undefined) throw new WeftlineError('WL_CLOSED', 'The channel was closed');
    if (this.posted - this.delivered >= MOST_PENDING || !engine.requests.put(this.#command)) return false;
    this.posted += 1;
    engine.nudge();
    return true;
  }

  async #close(): Promise<void> {
    this.#onClose();
    const { engine } = this.#link.backend;
    if (engine.failure === undefined) await engine.call({ name: 'closeChannel', channel: this.#number });
  }
}
