// The way to one peer over UCX, as the agent has it: regions, transfers, channels, notifications.
import { PART_FIELDS, linkWord, partField } from '../../../abi/ucx-words.ts';
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import { log } from '../../../core/log.ts';
import { protocolError } from '../../../meeting/frames.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import type {
  BackendContext,
  BackendLink,
  BackendRegion,
  BackendRemoteRegion,
  BackendTransfer,
  LinkState,
  PlannedTransfer,
  TransferOperation,
} from '../../backend.ts';
import { failureError, failures, linkStateOf } from './failure.ts';
import { inRecord } from './incoming.ts';
import { IN_RING_BYTES, type LinkBlock } from './link-block.ts';
import type { LinkOperations } from './link-operations.ts';
import { ringBytes } from './message-header.ts';
import type { OutMessages } from './out-messages.ts';
import { operationKinds } from './operation-kinds.ts';
import type { Outgoing } from './outgoing.ts';
import { UcxChannel } from './ucx-channel.ts';
import type { UcxDriver } from './ucx-driver.ts';
import { decodeUcxRegion } from './ucx-info.ts';
import { UcxRegion, UcxRemoteRegion } from './ucx-region.ts';
import type { UcxMeeting } from './ucx-meeting.ts';
import { UcxTransfer } from './ucx-transfer.ts';

type UcxPlan = PlannedTransfer<BackendRegion, BackendRemoteRegion>;

/** Of a link that ends, before it does. */
const MAX_LAST_STEPS = 64;

export type UcxLinkOptions = Pick<UcxMeeting, 'peer' | 'channel'> & {
  /** It has ended; `isHoldingBack` tells whether the agent has all that came of it. */
  readonly onEnd: () => void;
  /** The agent has the rest. */
  readonly onTaken: () => void;
};

export class UcxLink implements BackendLink, LinkOperations {
  readonly peer: string;
  readonly driver: UcxDriver;
  readonly block: LinkBlock;
  readonly outgoing: Outgoing;
  #error: WeftlineError | undefined;
  #state: LinkState = 'open';
  /** Notifications are here for which the agent has no room. */
  isHoldingBack = false;
  readonly #messages: OutMessages;
  readonly #life: number;
  readonly #onEnd: () => void;
  readonly #onTaken: () => void;
  readonly #channel: UcxMeeting['channel'];
  readonly #channels = new Set<UcxChannel>();
  /** Notifications that had come when the link ended. */
  readonly #kept: Uint8Array[] = [];
  #isClosed = false;
  #closing: Promise<void> | undefined;

  constructor(driver: UcxDriver, block: LinkBlock, { peer, channel, onEnd, onTaken }: UcxLinkOptions) {
    this.driver = driver;
    this.block = block;
    this.peer = peer;
    this.#onEnd = onEnd;
    this.#onTaken = onTaken;
    const { outgoing, messages } = driver.engine.link(block.index);
    this.outgoing = outgoing;
    this.#messages = messages;
    this.#life = block.words[linkWord.life]!;
    this.#channel = channel;
    channel.unref();
    channel.watch((farewell) => this.#peerLeft(farewell));
  }

  get state(): LinkState {
    return this.error === undefined ? 'open' : this.#state;
  }

  get error(): WeftlineError | undefined {
    const { words } = this.block;
    const failure = Atomics.load(words, linkWord.failure);
    if (this.#error === undefined && failure !== failures.none) {
      this.#note(failure, words[linkWord.failureDetail]!);
    }
    return this.#error;
  }

  importRegion(info: Uint8Array, { bytes }: { readonly bytes: number }): UcxRemoteRegion {
    const name = decodeUcxRegion(info);
    if (name === undefined) throw protocolError(`${info.byteLength} bytes about a region of ${this.peer}`);
    const { driver } = this;
    if (this.error !== undefined) return new UcxRemoteRegion(bytes, name, -1);
    driver.enter();
    try {
      return new UcxRemoteRegion(bytes, name, driver.remotes.open(this.block, name));
    } finally {
      driver.leave();
    }
  }

  releaseRegion(region: BackendRemoteRegion): void {
    const { driver } = this;
    if (this.error !== undefined || !(region instanceof UcxRemoteRegion) || driver.failure !== undefined) return;
    driver.enter();
    driver.remotes.close(this.block, region.place);
    driver.leave();
  }

  async prepare(operation: TransferOperation, plan: UcxPlan): Promise<BackendTransfer> {
    if (this.error !== undefined) throw this.error;
    const slot = this.driver.slots.pop();
    if (slot === undefined) throw new WeftlineError('WL_CAPACITY', 'Too many prepared transfers: release some first');
    const { driver } = this;
    try {
      const records = recordsOf(plan, driver.tables.regionMemory);
      driver.enter();
      try {
        return new UcxTransfer(this, slot, {
          operation,
          records,
          count: plan.parts.count,
          locals: plan.locals as readonly UcxRegion[],
        });
      } finally {
        driver.leave();
      }
    } catch (error) {
      this.driver.slots.push(slot);
      throw error;
    }
  }

  notify(message: Uint8Array): void {
    if (this.error !== undefined) throw this.error;
    const { driver } = this;
    driver.enter();
    try {
      this.begin(operationKinds.notify, 0, driver.tables.newOperation(), message);
      this.commit();
    } finally {
      driver.leave();
    }
  }

  openChannel(): UcxChannel {
    if (this.error !== undefined) throw this.error;
    const number = this.driver.channels.pop();
    if (number === undefined) throw new WeftlineError('WL_CAPACITY', 'Too many open channels: close some first');
    const { driver } = this;
    driver.enter();
    try {
      const channel: UcxChannel = new UcxChannel(this, number, () => this.#channels.delete(channel));
      this.#channels.add(channel);
      return channel;
    } finally {
      driver.leave();
    }
  }

  /** Hot path, under the lock. An operation that `commit` posts; its place in the queue. Fails with WL_BUSY. */
  begin(kind: number, slot: number, operation: number, message: Uint8Array | undefined): number {
    const { block, outgoing } = this;
    const entry = outgoing.begin(kind, slot, operation);
    if (entry < 0) throw new WeftlineError('WL_BUSY', 'Too many operations are under way: wait for earlier ones');
    if (message === undefined) return entry;
    const { length } = message;
    const place = this.#messages.place(entry, length);
    if (place < 0) {
      throw new WeftlineError('WL_BUSY', `${this.peer} has not taken earlier messages: wait until it has`, {
        details: { peer: this.peer },
      });
    }
    block.outRing.bytes.set(message, place);
    return entry;
  }

  /** Hot path, under the lock. What `begin` has made goes out as far as there is room. */
  commit(): void {
    this.outgoing.commit();
    this.outgoing.send();
  }

  /** Hot path, inside `poll`. Takes in what the UCX thread has found out. */
  look({ deliver, mayDeliver }: Pick<BackendContext, 'deliver' | 'mayDeliver'>): void {
    const { block, peer } = this;
    if (this.#isClosed) {
      while (this.#kept.length > 0 && mayDeliver(peer)) deliver(peer, this.#kept.shift() as Uint8Array);
      this.isHoldingBack = this.#kept.length > 0;
      if (!this.isHoldingBack) this.#onTaken();
      return;
    }
    const { words, inRing } = block;
    const published = Atomics.load(words, linkWord.inPublished);
    let at = words[linkWord.inTaken]!;
    while (at !== published) {
      const start = at & (IN_RING_BYTES - 1);
      const length = inRing.words[start / 4]!;
      const kind = inRing.words[start / 4 + 1]!;
      if (kind === inRecord.skip) {
        at = (at + inRecord.bytes + length) | 0;
        continue;
      }
      if (kind === inRecord.valid) {
        if (!mayDeliver(peer)) break;
        const first = start + inRecord.bytes;
        deliver(peer, inRing.bytes.slice(first, first + length));
      }
      at = (at + ringBytes(length)) | 0;
      Atomics.add(words, linkWord.taken, ringBytes(length));
    }
    this.isHoldingBack = at !== published;
    Atomics.store(words, linkWord.inTaken, at);
  }

  /** The peer waits to hear what was taken. */
  get owesRoom(): boolean {
    return !this.#isClosed && this.driver.engine.link(this.block.index).owesRoom;
  }

  errorOf(failure: number, detail: number): WeftlineError {
    return this.error ?? failureError(failure, detail, this.peer);
  }

  /** It has ended, and UCX uses none of its memory: see memory-use.ts. Its block may be another link's by now. */
  get isDrained(): boolean {
    const { words } = this.block;
    if (this.driver.isOver || words[linkWord.life] !== this.#life) return true;
    return this.driver.engine.link(this.block.index).isDrained;
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#drop(failures.linkClosed);
  }

  /** What it still does with the region is broken off, with the link. */
  endIfUses(region: number): void {
    if (!this.#isClosed && this.driver.engine.link(this.block.index).uses(region)) this.#drop(failures.stalled);
  }

  /**
   * Resolves when the condition holds, which says that UCX uses some memory no more. A peer that holds it up for too long
   * loses the link. Fails with WL_TIMEOUT.
   */
  async settle(isSo: () => boolean): Promise<void> {
    const { driver } = this;
    if (await driver.until(isSo, driver.patienceMs)) return;
    this.#drop(failures.stalled);
    if (await driver.until(isSo, driver.patienceMs)) return;
    const message = `UCX did not end what was under way with ${this.peer} within ${2 * driver.patienceMs} ms`;
    throw new WeftlineError('WL_TIMEOUT', message, { details: { peer: this.peer } });
  }

  #drop(failure: number): void {
    this.#end(failure);
    this.#channel.close();
  }

  #end(failure: number): void {
    const { driver } = this;
    if (this.#isClosed) return;
    if (driver.failure === undefined) {
      driver.enter();
      try {
        // What the peer has sent before it left may be here by now.
        for (let steps = 0; steps < MAX_LAST_STEPS && driver.work(); steps++);
        this.look({ mayDeliver: () => true, deliver: (_peer, message) => this.#kept.push(message) });
        driver.links.close(this.block, failure);
      } finally {
        driver.leave();
      }
    }
    // Its memory may soon be another link's.
    if (this.error === undefined) this.#note(failure, 0);
    this.#isClosed = true;
    this.isHoldingBack = this.#kept.length > 0;
    this.#onEnd();
  }

  /** The first failure ends the link. */
  #note(failure: number, detail: number): void {
    this.#error = failureError(failure, detail, this.peer);
    this.#state = linkStateOf(failure);
    if (this.#state === 'dead') log('agent', 'warn', this.#error.message);
  }

  #peerLeft(farewell: boolean): void {
    if (this.#closing === undefined) this.#end(farewell ? failures.peerClosed : failures.connectionEnded);
  }
}

/** The numbers of each part's record, in memory that the UCX thread sees. */
function recordsOf({ locals, remotes, parts }: UcxPlan, regionMemory: Float64Array): NativeBlock {
  const block = new NativeBlock(parts.count * PART_FIELDS * 8);
  const numbers = new Float64Array(block.bytes.buffer, block.bytes.byteOffset, parts.count * PART_FIELDS);
  for (let index = 0; index < parts.count; index++) {
    const local = locals[parts.local[index]!];
    const remote = remotes[parts.remote[index]!];
    if (!(local instanceof UcxRegion) || !(remote instanceof UcxRemoteRegion)) {
      throw invalidArgument('part', local, 'regions of the backend ucx');
    }
    const first = index * PART_FIELDS;
    numbers[first + partField.local] = local.address + parts.localOffset[index]!;
    numbers[first + partField.remoteOffset] = parts.remoteOffset[index]!;
    numbers[first + partField.bytes] = parts.bytes[index]!;
    numbers[first + partField.region] = remote.number;
    numbers[first + partField.key] = remote.key;
    numbers[first + partField.memory] = regionMemory[local.number]!;
    numbers[first + partField.remote] = remote.place;
  }
  return block;
}
