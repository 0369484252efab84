// Blocks that were checked once, as a launcher writes them into its ring.
import type { BlockMemory } from './block-memory.ts';
import type { WrittenFacts } from './ring-writer.ts';

/** Made by prepare() of a launcher, for its launch(). Holds copies: what happens to the blocks changes nothing. */
export class PreparedFragments {
  /** Fragments that it moves, without empty ones. */
  readonly fragments: number;
  /** Bytes that it moves. */
  readonly totalBytes: number;
  /** @internal The launcher that made it. */
  readonly owner: object;
  /** @internal Slots of a ring, as far as they are filled. */
  readonly slots: readonly Uint32Array[];
  /** @internal */
  readonly facts: WrittenFacts;
  /** @internal By block; what begin() was given as tensors. */
  readonly memory: readonly BlockMemory[];

  /** @internal Use prepare(). */
  constructor(owner: object, slots: readonly Uint32Array[], facts: WrittenFacts, memory: readonly BlockMemory[]) {
    this.owner = owner;
    this.slots = slots;
    this.facts = facts;
    this.memory = memory;
    this.fragments = facts.fragments;
    this.totalBytes = facts.totalBytes;
  }

  /** Blocks that it takes of the ring. */
  get blocks(): number {
    return this.slots.length;
  }
}
