// By how much later segments may overtake earlier ones before those count as lost; it follows what the peer reports.

/** Upper bounds: of a round trip, and in segments. */
const MAX_SHARE = 2;
const MAX_SEGMENTS = 256;
/** The tolerance grows and shrinks at most this often, in microseconds. */
const RAISE_INTERVAL = 1000;
const RELAX_INTERVAL = 250_000;

export class ReorderTolerance {
  segments: number;
  /** Of a round trip. */
  share: number;
  readonly #leastSegments: number;
  readonly #leastShare: number;
  /** The peer's last count of segments that came twice. */
  #duplicates = 0;
  #changedAt = 0;

  constructor(segments: number, share: number) {
    this.segments = segments;
    this.share = share;
    this.#leastSegments = segments;
    this.#leastShare = share;
  }

  /**
   * Hot path. The peer's count of segments that came twice; with `isOwnFault`, because this side sent some again. Those
   * were sent again too early, so the tolerance doubles; while that does not happen it halves back to where it began:
   * networks change, and tolerance makes losses show late.
   */
  note(duplicates: number, isOwnFault: boolean, now: number): void {
    const elapsed = now - this.#changedAt;
    const hasNew = ((duplicates - this.#duplicates) | 0) > 0;
    if (hasNew) this.#duplicates = duplicates;
    if (hasNew && isOwnFault) {
      if (elapsed >= RAISE_INTERVAL) this.#set(this.segments * 2, this.share * 2, now);
    } else if (elapsed >= RELAX_INTERVAL && (this.share > this.#leastShare || this.segments > this.#leastSegments)) {
      this.#set(Math.floor(this.segments / 2), this.share / 2, now);
    }
  }

  #set(segments: number, share: number, now: number): void {
    this.segments = Math.max(this.#leastSegments, Math.min(MAX_SEGMENTS, segments));
    this.share = Math.max(this.#leastShare, Math.min(MAX_SHARE, share));
    this.#changedAt = now;
  }
}
