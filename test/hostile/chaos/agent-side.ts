// One of two agents that write into each other's memory, read it back and tell each other, until one of them is gone.
import { setTimeout as sleep } from 'node:timers/promises';
import { WeftlineError } from 'weftline';
import { Agent, DescriptorList, type Registration, type RemoteMemory, type Transfer } from 'weftline/agent';
import { Random } from '../fuzz/random.ts';
import { chaosSettings } from './chaos-settings.ts';
import { type PairKind, type Round, say, WrongBytes } from './driver-link.ts';
import { fillPattern, wrongAt } from './pattern.ts';

const SLOTS = 4;
const SLOT_BYTES = 2 << 20;
/** One transfer in so many moves the whole memory: more than the posting thread copies by itself. */
const LARGE_EVERY = 12;

/** A write that has arrived, as its notification says. */
interface Arrival {
  readonly slot: number;
  readonly bytes: number;
  readonly number: number;
}

export class AgentSide implements AsyncDisposable {
  operations = 0;
  readonly #agent: Agent;
  readonly #scratch: Registration;
  /** Only the peer writes here. */
  readonly #theirs: Registration;
  readonly #random: Random;
  readonly #latest = new Map<number, Arrival>();
  #remote: RemoteMemory | undefined;
  #peer = '';
  #number = 0;
  #heard = 0;

  static async open(kind: PairKind, name: string, seed: number): Promise<AgentSide> {
    const backends = [kind as 'local' | 'multipath'];
    const agent = await Agent.create(name, { token: 'chaos', settings: chaosSettings, backends });
    const scratch = await agent.allocate(SLOTS * SLOT_BYTES);
    const theirs = await agent.allocate(SLOTS * SLOT_BYTES, { name: 'theirs' });
    return new AgentSide(agent, scratch, theirs, new Random(seed));
  }

  // oxlint-disable-next-line max-params -- what `open` made
  private constructor(agent: Agent, scratch: Registration, theirs: Registration, random: Random) {
    this.#agent = agent;
    this.#scratch = scratch;
    this.#theirs = theirs;
    this.#random = random;
  }

  async meet(round: Round): Promise<void> {
    round.tell(this.#agent.localMetadata());
    this.#peer = await this.#agent.loadRemoteMetadata(await round.next<Uint8Array>());
    this.#remote = this.#agent.remoteMemory(this.#peer).find(({ name }) => name === 'theirs');
  }

  /** Until the round is to finish, or with the error that ends it. */
  async run(round: Round): Promise<void> {
    for (let first = true; !round.isToFinish; first = false) {
      const isLarge = this.#random.below(LARGE_EVERY) === 0;
      if (isLarge) await this.#exchange(0, SLOTS * SLOT_BYTES);
      else await Promise.all([this.#exchangeSlot(0), this.#exchangeSlot(1 + this.#random.below(SLOTS - 1))]);
      this.#hear();
      if (first) say({ tell: 'running' });
      // The peer's words and the driver's.
      await sleep(this.#random.below(2));
    }
  }

  /** Notifications that were sent. */
  get told(): number {
    return this.#number;
  }

  /** Both have finished: what came last into each slot lies there. `told`: by the peer. */
  async checkArrived(told: number): Promise<void> {
    while (this.#heard < told) {
      const { message } = await this.#agent.nextNotification({ timeoutMs: chaosSettings.timeoutMs });
      this.#note(message);
    }
    for (const { slot, bytes, number } of this.#latest.values()) {
      if (bytes > SLOT_BYTES) continue;
      const whole = [...this.#latest.values()].some((other) => other.bytes > SLOT_BYTES && other.number > number);
      if (whole) continue;
      this.#compare(this.#theirs.bytes, { slot, bytes, number }, 'arrived');
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#agent.close();
  }

  #exchangeSlot(slot: number): Promise<void> {
    return this.#exchange(slot, 1 + Math.floor(this.#random.next() ** 3 * (SLOT_BYTES - 1)));
  }

  /** Writes, and reads back what is there then: nobody else writes it. */
  async #exchange(slot: number, bytes: number): Promise<void> {
    const number = ++this.#number;
    const offset = slot * SLOT_BYTES;
    const memory = this.#scratch.bytes.subarray(offset, offset + bytes);
    fillPattern(memory, number);
    await this.#move(
      'write',
      { offset, bytes },
      Buffer.from(JSON.stringify({ slot, bytes, number } satisfies Arrival)),
    );
    memory.fill(0);
    await this.#move('read', { offset, bytes });
    this.#compare(this.#scratch.bytes, { slot, bytes, number }, 'was read back');
    this.operations++;
  }

  async #move(
    operation: 'read' | 'write',
    { offset, bytes }: { readonly offset: number; readonly bytes: number },
    message?: Uint8Array,
  ): Promise<void> {
    const local = partsOf(this.#scratch, offset, bytes);
    const remote = partsOf(this.#remote as RemoteMemory, offset, bytes);
    await using transfer = await this.#agent.prepare({ operation, peer: this.#peer, local, remote });
    await this.#post(transfer, message);
    await transfer.wait();
  }

  /** A peer that is stopped takes no notifications: tries again as long as a wait may last. */
  async #post(transfer: Transfer, message: Uint8Array | undefined): Promise<void> {
    const end = performance.now() + chaosSettings.timeoutMs;
    for (;;) {
      try {
        transfer.post(message);
        return;
      } catch (error) {
        const isFull = error instanceof WeftlineError && ['WL_CAPACITY', 'WL_BUSY', 'WL_AGAIN'].includes(error.code);
        if (!isFull || performance.now() > end) throw error;
        this.#hear();
        await sleep(2);
      }
    }
  }

  #hear(): void {
    for (const { message } of this.#agent.takeNotifications()) this.#note(message);
  }

  #note(message: Uint8Array): void {
    const arrival = JSON.parse(Buffer.from(message).toString()) as Arrival;
    this.#heard++;
    this.#latest.set(arrival.bytes > SLOT_BYTES ? -1 : arrival.slot, arrival);
  }

  #compare(memory: Uint8Array, { slot, bytes, number }: Arrival, what: string): void {
    const at = wrongAt(memory.subarray(slot * SLOT_BYTES, slot * SLOT_BYTES + bytes), number);
    if (at >= 0) throw new WrongBytes(`byte ${at} of ${bytes} that ${what} as number ${number} is wrong`);
  }
}

/** One range, or many where there is room for them. */
function partsOf(memory: Registration | RemoteMemory, offset: number, bytes: number): DescriptorList {
  const blockBytes = 4096;
  const whole = Math.floor(bytes / blockBytes);
  if (whole < 2 || bytes > SLOT_BYTES) return DescriptorList.of(memory, offset, bytes);
  const blocks = DescriptorList.blocks(memory, { blockBytes, count: whole, offset });
  const rest = bytes - whole * blockBytes;
  return rest === 0 ? blocks : blocks.concat(DescriptorList.of(memory, offset + whole * blockBytes, rest));
}
