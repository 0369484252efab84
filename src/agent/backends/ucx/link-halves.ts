// One link as the thread works for it that has its turn: both halves, and its end.
import { linkWord } from '../../../abi/ucx-words.ts';
import { ucxMessage, ucxMessageKinds } from '../../../abi/ucx-message.ts';
import { failures } from './failure.ts';
import { Incoming, states } from './incoming.ts';
import { SENDS, WINDOW } from './link-block.ts';
import { Direct } from './direct.ts';
import { headerWord as at } from './message-header.ts';
import { Notices } from './notices.ts';
import { OutMessages } from './out-messages.ts';
import { Outgoing } from './outgoing.ts';
import { Reads } from './reads.ts';
import { Rights } from './rights.ts';
import { endLink, type LinkTools, Sender } from './sender.ts';

/** A link that has ended, by what is left to do: withdraw receives, wait for UCX, nothing. */
const ends = { none: 0, draining: 1, drained: 2 } as const;

export class LinkHalves {
  readonly outgoing: Outgoing;
  readonly #tools: LinkTools;
  readonly messages: OutMessages;
  readonly #sender: Sender;
  readonly #reads: Reads;
  readonly #notices: Notices;
  readonly #rights: Rights;
  readonly #incoming: Incoming;
  readonly #follows = { address: 0, length: 0 };

  constructor(tools: LinkTools, partsOf: (slot: number) => Float64Array) {
    this.#tools = tools;
    this.#sender = new Sender(tools);
    this.#reads = new Reads(tools, this.#sender);
    this.messages = new OutMessages(tools.block);
    const { messages } = this;
    const sender = this.#sender;
    const direct = new Direct(tools, sender);
    this.outgoing = new Outgoing({ ...tools, sender, reads: this.#reads, direct, messages, partsOf });
    const notices = new Notices(tools, sender);
    const rights = new Rights(tools, notices, direct);
    this.#notices = notices;
    this.#rights = rights;
    this.#incoming = new Incoming({ ...tools, sender, outgoing: this.outgoing, notices, rights });
  }

  /** A control message with this link's index. */
  take(words: Uint32Array, base: number, address: number, length: number): void {
    const link = this.#tools.block.words;
    const isIts =
      link[linkWord.number] === words[base + at.link] &&
      link[linkWord.secretLow] === (words[base + at.secretLow]! | 0) &&
      link[linkWord.secretHigh] === (words[base + at.secretHigh]! | 0);
    if (!isIts || length < ucxMessage.size) return;
    if (link[linkWord.hasHeard] === 0) {
      link[linkWord.hasHeard] = 1;
      // The far side's link may have been made after the first greeting came there.
      if (this.#tools.block.endpoint[0] !== 0 && this.#sender.hasControlRoom) {
        this.greet();
        if (link[linkWord.end] === ends.drained) link[linkWord.end] = ends.draining;
      }
    }
    if (link[linkWord.isOpen] !== 1 || link[linkWord.failure] !== failures.none) return;
    link[linkWord.takenThere] = words[base + at.taken]!;
    this.#follows.address = address;
    this.#follows.length = length;
    this.#incoming.take(words, base, this.#follows);
  }

  /** False if nothing happened. */
  step(): boolean {
    const { block } = this.#tools;
    const link = block.words;
    if (link[linkWord.lost] !== 0) endLink(this.#tools, failures.lost, 0);
    if (link[linkWord.failure] !== failures.none) return this.#windUp();
    const hasSent = this.#sender.pop();
    const hasReceived = this.#incoming.step();
    const hasTold = this.#notices.flush();
    const hasAnswered = this.#incoming.sendAnswers();
    const hasMoved = this.outgoing.step();
    return hasSent || hasReceived || hasTold || hasAnswered || hasMoved;
  }

  /** A message without effect, from which the far side sees that this one has connected its endpoint. */
  greet(): void {
    this.#sender.begin(ucxMessageKinds.acknowledge, 0, 0);
    this.#sender.sendControl(0);
  }

  /** Tells the far side what has arrived. */
  acknowledge(isIdle: boolean): void {
    if (this.#tools.block.words[linkWord.failure] === failures.none) this.#sender.acknowledge(isIdle);
  }

  /** To be asked after notifications were taken: true if the next step should come soon. */
  get owesRoom(): boolean {
    return this.#sender.owesRoom;
  }

  /** UCX reads or writes the region for this link, or will. */
  uses(region: number): boolean {
    if (this.#rights.holds(region)) return true;
    const { words, sendRegion, answerRegion, inState, inRegion } = this.#tools.block;
    for (let next = words[linkWord.sendsPopped]!; next !== words[linkWord.sendsPushed]; next = (next + 1) | 0) {
      if (sendRegion[next & (SENDS - 1)] === region) return true;
    }
    for (let next = words[linkWord.answersHead]!; next !== words[linkWord.answersTail]; next = (next + 1) | 0) {
      if (answerRegion[next & (WINDOW - 1)] === region) return true;
    }
    return inState.some((state, place) => state === states.receiving && inRegion[place] === region);
  }

  /** The far side is to use the region no more: see Rights. */
  withdraw(region: number): void {
    if (this.#tools.block.words[linkWord.failure] === failures.none) this.#rights.withdraw(region);
  }

  /** The link has ended, and UCX has returned all requests. */
  get isDrained(): boolean {
    return this.#tools.block.words[linkWord.end] === ends.drained;
  }

  #windUp(): boolean {
    const link = this.#tools.block.words;
    if (link[linkWord.end] === ends.drained) return false;
    const isFirst = link[linkWord.end] === ends.none;
    if (isFirst) {
      link[linkWord.end] = ends.draining;
      this.#reads.cancelAll();
      this.#incoming.cancelReceives();
      this.#rights.giveUp();
    }
    this.outgoing.failAll();
    this.#sender.pop();
    this.#reads.pop();
    const hasReceived = this.#incoming.drain();
    const hasRead = link[linkWord.readsHead] === link[linkWord.readsTail];
    const hasSent = link[linkWord.sendsPopped] === link[linkWord.sendsPushed];
    if (hasReceived && hasRead && hasSent) link[linkWord.end] = ends.drained;
    return isFirst;
  }
}
