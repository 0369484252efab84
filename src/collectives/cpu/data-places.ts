// Where the data of slots and channels lie, which a mover reads and writes: in the windows, or in memory of GPUs beside them.

/** Offsets in a rank's part are those of its window. */
export interface DataPlaces {
  /** They are the windows themselves: what was written there can be put from there. */
  readonly areShared: boolean;
  /** By rank of the group: of its part, or of its mirror here. */
  readonly addresses: readonly number[];
  /** Of this rank's part of the window, for the mover: from there data go to other hosts. */
  readonly outgoing: number;
}
