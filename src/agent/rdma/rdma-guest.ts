// A peer that connected to this agent: its messages arrive in an inbox, and it is told what was taken.
import { sendFlag, sendOpcode } from '../../native/verbs/c-structs.ts';
import { randomBytes } from 'node:crypto';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import { protocolError } from '../../meeting/frames.ts';
import type { BackendContext } from '../backend.ts';
import type { EndUser, RdmaDevice, RdmaEnd } from './rdma-device.ts';
import type { MeetingEnd, RdmaCaller } from './rdma-meeting.ts';
import { Inbox, RDMA_MESSAGES, RDMA_WAKE, RDMA_WAKES } from './rdma-messages.ts';

const RECEIVES = RDMA_MESSAGES + RDMA_WAKES;
/** Credits are sent one after the other. */
const SENDS = 2;

interface GuestOptions {
  readonly caller: RdmaCaller;
  readonly channel: ControlChannel;
  readonly onEnd: (guest: RdmaGuest) => void;
}

export class RdmaGuest implements EndUser {
  /** It has sent something: both sides are connected. */
  hasSpoken = false;
  /** The name by which its peer asks for it when it connects anew. */
  readonly id: string = randomBytes(8).toString('hex');
  readonly #name: string;
  readonly #end: RdmaEnd;
  readonly #inbox: Inbox;
  readonly #mailbox: { readonly address: number; readonly key: number };
  readonly #channel: ControlChannel;
  #isTelling = false;
  /** The queue pair takes nothing more. The peer, which hears of that too, connects anew if it wants, and leaves this one. */
  #isBroken = false;
  #hasLeft = false;

  /** The queue pair can receive when this returns. Fails with WL_CAPACITY. */
  constructor(device: RdmaDevice, { caller, channel, onEnd }: GuestOptions) {
    this.#name = caller.name;
    this.#channel = channel;
    const keys = device.openKeys();
    const { address, key } = caller.end.mailbox;
    const number = keys.add(Buffer.from(key, 'hex'));
    if (number === undefined) throw protocolError(`a key of a mailbox of ${caller.name} that is none`);
    this.#mailbox = { address, key: number };
    this.#inbox = new Inbox(device);
    try {
      this.#end = device.openEnd({ peer: caller.name, role: 'called', maxSends: SENDS, maxReceives: RECEIVES });
    } catch (error) {
      this.#inbox[Symbol.dispose]();
      throw error;
    }
    try {
      this.#end.use(this);
      this.#end.connect(caller.end.end, keys);
    } catch (error) {
      // The channel stays open, by which the caller is told why.
      this.#end.close();
      this.#inbox[Symbol.dispose]();
      throw error;
    }
    channel.unref();
    channel.watch(() => onEnd(this));
  }

  /** The guest's end of the meeting, for the caller. */
  get end(): MeetingEnd {
    const { address, region } = this.#inbox;
    return { end: this.#end.address, mailbox: { address, key: Buffer.from(region.remoteKey).toString('hex') } };
  }

  /** It has left, and all that came was delivered. */
  get isDone(): boolean {
    return this.#hasLeft && this.#inbox.isEmpty;
  }

  /** Messages that came. Final once it has left. */
  get arrivedCount(): number {
    return this.#inbox.arrivedCount;
  }

  get hasLeft(): boolean {
    return this.#hasLeft;
  }

  done(sequence: number): void {
    this.#end.sends.doneUntil(sequence);
    this.#isTelling = false;
  }

  received(immediate: number): void {
    if (this.#isBroken) return;
    this.hasSpoken = true;
    try {
      if (immediate === RDMA_WAKE) this.#inbox.woken();
      else this.#inbox.arrived(immediate);
    } catch (error) {
      this.#isBroken = true;
      this.#channel.refuse(error);
    }
  }

  failed(): void {
    this.#isBroken = true;
  }

  /** Hot path. Delivers what may be delivered, makes room for more when it is worth a call. True if something came. */
  poll({ deliver, mayDeliver }: Pick<BackendContext, 'deliver' | 'mayDeliver'>): boolean {
    const inbox = this.#inbox;
    let hasNews = false;
    while (!inbox.isEmpty && mayDeliver(this.#name)) {
      deliver(this.#name, inbox.take());
      hasNews = true;
    }
    if (!this.#isBroken && inbox.owesCredits && !this.#isTelling) this.#tell();
    return hasNews;
  }

  /** It has left, or died. ORDER: what came before is taken in first. */
  leave(): void {
    this.#end.close();
    this.#isBroken = true;
    this.#hasLeft = true;
  }

  /** Once it has returned, the peer reaches nothing by this queue pair. Idempotent. */
  close(): void {
    this.#isBroken = true;
    this.#channel.close();
    this.#end.close();
    this.#inbox[Symbol.dispose]();
  }

  #tell(): void {
    const { sends } = this.#end;
    // ORDER: receives before the credits that promise them. They go together, because each call comes before an answer.
    this.#end.replenish();
    const { creditAddress, region } = this.#inbox;
    this.#inbox.writeCredits();
    sends.start(sendOpcode.write, sendFlag.signaled, 0);
    sends.add(creditAddress, 8, region.localKey);
    sends.target(this.#mailbox.address, this.#mailbox.key);
    sends.post();
    this.#isTelling = true;
  }
}
