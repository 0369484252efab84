// What one thread of a sender tells the owner of the memory that it touches: whether it is within a step. Hot path.
import { MAILBOX_REGIONS, mailboxRegion, mailboxSender, REGIONS_OFFSET } from '../../../abi/agent-mailbox.ts';
import { slotOffset } from './mailbox-layout.ts';
import type { RegionGrant, RegionGrants } from './region-grants.ts';

/** Each thread that copies has a word of its own. */
type StepWord = 'agentStep' | 'copyStep';

interface ReleasableGrant extends RegionGrant {
  readonly isReleased: boolean;
}

/**
 * On x86-64 an atomic addition is a full barrier, and loads and stores otherwise stay in order; so ordinary ones suffice,
 * which cost a fraction of a call of Atomics.
 */
const IS_X64 = process.arch === 'x64';

export class PeerSteps {
  readonly #words: Int32Array;
  readonly #at: number;
  readonly #keys: Int32Array;

  /** `buffer`: the peer's mailbox. */
  constructor(buffer: ArrayBuffer, slot: number, word: StepWord) {
    this.#words = new Int32Array(buffer, slotOffset(slot), mailboxSender.size / 4);
    this.#at = mailboxSender.offset[word] / 4;
    this.#keys = new Int32Array(buffer, REGIONS_OFFSET, (MAILBOX_REGIONS * mailboxRegion.size) / 4);
  }

  /** ORDER: before the keys are looked at. From now until `end` the owner waits with what it takes back. Not reentrant. */
  begin(): void {
    Atomics.add(this.#words, this.#at, 1);
  }

  /** ORDER: after the last access to the peer's memory. */
  end(): void {
    if (IS_X64) this.#words[this.#at]! += 1;
    else Atomics.add(this.#words, this.#at, 1);
  }

  /** True if the peer has all of them registered. While this side is within a step, the peer's deregistration waits. */
  hold(grants: RegionGrants): boolean {
    return grants.areHeld(this.#keys);
  }

  /** The same of regions themselves; none of them may have been released by this side either. */
  mayTouch(regions: readonly ReleasableGrant[]): boolean {
    const keys = this.#keys;
    for (let index = 0; index < regions.length; index += 1) {
      const { isReleased, keyAt, keyValue } = regions[index] as ReleasableGrant;
      if (isReleased || (IS_X64 ? keys[keyAt] : Atomics.load(keys, keyAt)) !== keyValue) return false;
    }
    return true;
  }

  holds({ keyAt, keyValue }: RegionGrant): boolean {
    return Atomics.load(this.#keys, keyAt) === keyValue;
  }
}
