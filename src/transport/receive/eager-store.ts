// Messages that came before there was a receive for them: a slot of memory for each, which the sender has chosen. Hot path:
// no allocation.
import { EAGER_SLOTS } from '../wire/packet-layout.ts';
import type { Region } from '../engine/region.ts';

/**
 * `withdrawn`: the sender has taken the message back, whether or not it had come; its place is not passed yet. Of the next
 * three the sender is to be told: `delivered` late, `refused`, and `released`, whose message will not be delivered. `told`:
 * it was told of one of the last two, and may not know it yet.
 */
export const slotStates = { free: 0, parked: 1, withdrawn: 2, delivered: 3, refused: 4, released: 5, told: 6 } as const;

export class EagerStore {
  /** Most of a message. */
  readonly bytes: number;
  readonly region: Region;
  /** Messages that are parked or withdrawn. */
  count = 0;
  /**
   * A bit for each slot whose message was not delivered. One that will not be keeps it until the sender knows that: an ack
   * of the message without the bit says that it was delivered.
   */
  parked = 0;
  /** A bit for each slot that the sender is to be told of. */
  #owed = 0;
  #told = 0;
  readonly #state = new Uint8Array(EAGER_SLOTS);
  readonly #flow = new Uint16Array(EAGER_SLOTS);
  readonly #number = new Int32Array(EAGER_SLOTS);
  readonly #handle = new Float64Array(EAGER_SLOTS);
  readonly #length = new Uint16Array(EAGER_SLOTS);
  readonly #reason = new Uint8Array(EAGER_SLOTS);
  readonly #room = new Float64Array(EAGER_SLOTS);
  readonly #record = new Int32Array(EAGER_SLOTS);

  constructor(bytes: number) {
    this.bytes = bytes;
    const memory = new Uint8Array(EAGER_SLOTS * bytes);
    this.region = { id: 0, key: 0, bytes: memory, address: 0, remote: { read: false, write: false } };
  }

  stateOf(slot: number): number {
    return this.#state[slot]!;
  }

  /** The slot of the message for receive `number` of a flow, if it is parked or withdrawn; -1 otherwise. */
  find(flow: number, number: number): number {
    if (this.count === 0) return -1;
    for (let slot = 0; slot < EAGER_SLOTS; slot++) if (this.isFor(slot, flow, number)) return slot;
    return -1;
  }

  isFor(slot: number, flow: number, number: number): boolean {
    const state = this.#state[slot];
    const isHere = state === slotStates.parked || state === slotStates.withdrawn;
    return isHere && this.#flow[slot] === flow && this.#number[slot] === number;
  }

  /** True if that message was withdrawn, as far as the sender may not know that its slot is free. */
  isWithdrawn(slot: number, flow: number, number: number): boolean {
    const state = this.#state[slot];
    const isOver = state === slotStates.withdrawn || state === slotStates.released || state === slotStates.told;
    return isOver && this.#flow[slot] === flow && this.#number[slot] === number;
  }

  /** True if the sender may have given the slot to another message. */
  isOpen(slot: number): boolean {
    const state = this.#state[slot];
    return state === slotStates.free || state === slotStates.delivered || state === slotStates.told;
  }

  offsetOf(slot: number): number {
    return slot * this.bytes;
  }

  lengthOf(slot: number): number {
    return this.#length[slot]!;
  }

  /** A message is new in a slot: `parked`, its bytes are at `offsetOf`, or `withdrawn`. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per message
  put(slot: number, state: number, flow: number, number: number, handle: number, length: number): void {
    this.clear(slot);
    this.#state[slot] = state;
    this.#flow[slot] = flow;
    this.#number[slot] = number;
    this.#handle[slot] = handle;
    this.#length[slot] = length;
    this.parked |= 1 << slot;
    this.count++;
  }

  /** The sender takes a parked message back. */
  withdraw(slot: number): void {
    this.#state[slot] = slotStates.withdrawn;
  }

  /** A parked message has its receive. */
  deliver(slot: number): void {
    this.#leave(slot, slotStates.delivered);
    this.parked &= ~(1 << slot);
  }

  /** A parked message cannot be delivered, for one of failReasons; `room` is what there was for it. */
  refuse(slot: number, reason: number, room: number): void {
    this.#leave(slot, slotStates.refused);
    this.#reason[slot] = reason;
    this.#room[slot] = room;
  }

  /** The place of a withdrawn message has been passed. */
  release(slot: number): void {
    this.#leave(slot, slotStates.released);
  }

  #leave(slot: number, state: number): void {
    this.count--;
    this.#state[slot] = state;
    this.#owed |= 1 << slot;
  }

  /** Nothing is in the slot. */
  clear(slot: number): void {
    const state = this.#state[slot];
    if (state === slotStates.parked || state === slotStates.withdrawn) this.count--;
    const bit = ~(1 << slot);
    this.#state[slot] = slotStates.free;
    this.parked &= bit;
    this.#owed &= bit;
    this.#told &= bit;
  }

  get owes(): boolean {
    return this.#owed !== 0;
  }

  /** The sender's request. */
  handleOf(slot: number): number {
    return this.#handle[slot]!;
  }

  /** Why a message was refused, and what room there was. */
  reasonOf(slot: number): number {
    return this.#reason[slot]!;
  }

  roomOf(slot: number): number {
    return this.#room[slot]!;
  }

  /** Calls `tell` for each slot that the sender is to be told of, until it says false; `record` is the next one's number. */
  tell(tell: (slot: number) => boolean, record: number): void {
    let next = record;
    for (let slot = 0; slot < EAGER_SLOTS; slot++) {
      const bit = 1 << slot;
      if ((this.#owed & bit) === 0) continue;
      if (!tell(slot)) return;
      if (this.#state[slot] === slotStates.delivered) {
        this.clear(slot);
      } else {
        this.#state[slot] = slotStates.told;
        this.#record[slot] = next;
        this.#told |= bit;
        this.#owed &= ~bit;
      }
      next = (next + 1) | 0;
    }
  }

  /** The sender has confirmed its records up to before `first`. */
  settle(first: number): void {
    if (this.#told === 0) return;
    for (let slot = 0; slot < EAGER_SLOTS; slot++) {
      if ((this.#told & (1 << slot)) !== 0 && ((first - this.#record[slot]!) | 0) > 0) this.clear(slot);
    }
  }
}
