// A peer that connected to this agent: its messages arrive in an inbox, and it is told what was taken.
import { VERBS_MESSAGES, VERBS_WAKE, VERBS_WAKES } from '../../../abi/verbs-agent.ts';
import { completionOpcode, sendFlag, sendOpcode } from '../../../abi/verbs-words.ts';
import type { ControlChannel } from '../../../meeting/control-channel.ts';
import type { CompletionQueue } from '../../../native/verbs/completion-queue.ts';
import type { BackendContext } from '../../backend.ts';
import type { CompletionTaker } from './completion-pool.ts';
import { Inbox } from './inbox.ts';
import { QueuePairEnd } from './queue-pair-end.ts';
import type { VerbsDevice } from './verbs-device.ts';
import type { MeetingEnd, VerbsCaller } from './verbs-meeting.ts';

const RECEIVES = VERBS_MESSAGES + VERBS_WAKES;
/** Credits are sent one after the other. */
const SENDS = 2;

export interface GuestOptions {
  readonly caller: VerbsCaller;
  readonly channel: ControlChannel;
  readonly onEnd: (guest: VerbsGuest) => void;
}

export class VerbsGuest implements CompletionTaker {
  readonly #name: string;
  readonly #end: QueuePairEnd;
  readonly #inbox: Inbox;
  readonly #mailbox: MeetingEnd['mailbox'];
  readonly #channel: ControlChannel;
  #isTelling = false;
  /** Its queue pair takes nothing more. The peer, which hears of that too, connects anew if it wants, and leaves this one. */
  #isBroken = false;
  #hasLeft = false;

  /** Its queue pair can receive when this returns. Fails with WL_CAPACITY. */
  constructor(device: VerbsDevice, { caller, channel, onEnd }: GuestOptions) {
    const hasAtomics = device.context.attributes.atomicCap !== 'none';
    const access = { remoteWrite: true, remoteRead: true, remoteAtomic: hasAtomics };
    this.#name = caller.name;
    this.#mailbox = caller.end.mailbox;
    this.#channel = channel;
    this.#inbox = new Inbox(device.domain);
    try {
      this.#end = new QueuePairEnd(device, { maxSends: SENDS, maxReceives: RECEIVES, access });
    } catch (error) {
      this.#inbox[Symbol.dispose]();
      throw error;
    }
    try {
      const { receives } = this.#end.queuePair;
      while (receives.start(0));
      receives.post();
      this.#end.takeCompletions(this);
      this.#end.connect(caller.end);
    } catch (error) {
      // Not the channel, by which the caller is told why.
      this.#end.close();
      this.#inbox[Symbol.dispose]();
      throw error;
    }
    channel.unref();
    channel.watch(() => onEnd(this));
  }

  /** For the caller. */
  get end(): MeetingEnd {
    const { address, region } = this.#inbox;
    return { ...this.#end.address, mailbox: { address, key: region.remoteKey } };
  }

  /** It has left, and all that came was delivered. */
  get isDone(): boolean {
    return this.#hasLeft && this.#inbox.isEmpty;
  }

  complete(queue: CompletionQueue, index: number): void {
    if (this.#isBroken) return;
    if (!queue.isSuccess(index)) this.#isBroken = true;
    else if (queue.opcodeAt(index) !== completionOpcode.receiveWriteWithImmediate) {
      this.#end.queuePair.sends.doneUntil(queue.sequenceAt(index));
      this.#isTelling = false;
    } else {
      this.#end.queuePair.receives.done();
      const immediate = queue.immediateAt(index);
      try {
        if (immediate === VERBS_WAKE) this.#inbox.woken();
        else this.#inbox.arrived(immediate);
      } catch (error) {
        this.#isBroken = true;
        this.#channel.refuse(error);
      }
    }
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
    const { sends, receives } = this.#end.queuePair;
    // ORDER: receives before the credits that promise them. They go together, because each call comes before an answer.
    while (receives.start(0));
    if (receives.unposted > 0) receives.post();
    const { creditAddress, region } = this.#inbox;
    this.#inbox.writeCredits();
    sends.start(sendOpcode.write, sendFlag.signaled, 0);
    sends.add(creditAddress, 8, region.localKey);
    sends.target(this.#mailbox.address, this.#mailbox.key);
    sends.post();
    this.#isTelling = true;
  }
}
