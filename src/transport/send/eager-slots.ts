// Messages that are sent before their receives are announced: which of the receiver's slots they have. Hot path: no
// allocation.
import { EAGER_SLOTS } from '../../abi/transport-packet.ts';
import type { Request } from '../engine/request.ts';

/** In place of a slot. */
export const NO_SLOT = -1;

export class EagerSlots {
  /** Most of a message. */
  readonly bytes: number;
  /** A bit for each slot. */
  #free = 2 ** EAGER_SLOTS - 1;
  #retracts = 0;
  /** The messages that have the slots: their handles, their flows and the numbers of their receives. */
  readonly #handle = new Float64Array(EAGER_SLOTS);
  readonly #flow = new Uint16Array(EAGER_SLOTS);
  readonly #number = new Int32Array(EAGER_SLOTS);

  constructor(bytes: number) {
    this.bytes = bytes;
  }

  get hasFree(): boolean {
    return this.#free !== 0;
  }

  /** Gives a message a slot, of which there must be a free one, for the receive number `number` of its flow. */
  take(request: Request, number: number): void {
    const slot = 31 - Math.clz32(this.#free & -this.#free);
    this.#free &= ~(1 << slot);
    this.#handle[slot] = request.handle;
    this.#flow[slot] = request.flow;
    this.#number[slot] = number;
    request.slot = slot;
    request.number = number;
  }

  /** The message that has the slot, or had it last. */
  handleOf(slot: number): number {
    return this.#handle[slot]!;
  }

  /** The message no longer needs its slot. One that has it no more changes nothing. */
  free(slot: number, handle: number): void {
    if (this.#handle[slot] === handle) this.#free |= 1 << slot;
  }

  /** The message is withdrawn: the receiver is to be told. It says when the slot is free. */
  retract(request: Request): void {
    request.isRetracted = true;
    this.#retracts |= 1 << request.slot;
  }

  get hasRetracts(): boolean {
    return this.#retracts !== 0;
  }

  /** Calls `tell` with the messages that were withdrawn; one for which it says false is told later. */
  tellRetracts(tell: (handle: number, flow: number, number: number, slot: number) => boolean): void {
    for (let slot = 0; slot < EAGER_SLOTS; slot++) {
      const bit = 1 << slot;
      if ((this.#retracts & bit) === 0) continue;
      if (!tell(this.#handle[slot]!, this.#flow[slot]!, this.#number[slot]!, slot)) return;
      this.#retracts &= ~bit;
    }
  }
}
