// The paths to a peer, shared by all its flows: round-trip times, what arrived last, which are dead, and which to take.
// Hot path: no allocation.

const RTT_GAIN = 1 / 8;
const VARIATION_GAIN = 1 / 4;
const MIN_RTT_DRIFT = 2 ** -16;
/** A loss doubles the round-trip time that the choice of a path sees, up to this factor; each echo takes some back. */
const MAX_PENALTY = 64;
const PENALTY_DECAY = 0.9;
const REVIVED_PATH_PENALTY = 4;
/** What is left, each time a path is not taken, of its penalty and of its excess over the path that is. */
const FADE = 0.98;
/** Share of the better path's round-trip time that an untried path's fades to: below 1, or it would not be tried. */
const TRY_AGAIN = 0.9;
/** Costs that differ by less than this factor make no difference. */
const NEARLY = 1.25;
/** Bytes in flight that double the cost of a path: its own, and those of all paths of its rail. */
const PATH_LOAD_UNIT = 65_536;
const RAIL_LOAD_UNIT = 16_384;

/** Bytes in flight, by path and by rail. */
interface PathLoad {
  readonly pathBytes: Float64Array;
  readonly railBytes: Float64Array;
}

export class PathTable {
  readonly count: number;
  /** Network cards of this host: path p leaves by rail p modulo this. At most as many as paths. */
  readonly rails: number;
  /** Number of the next transmission on the path. */
  readonly nextSequence: Int32Array;
  /** The newest transmission that the peer has echoed, and when it was sent. */
  readonly echoedSequence: Int32Array;
  readonly echoedSentAt: Float64Array;
  /** When the newest echo came. */
  readonly echoedAt: Float64Array;
  /** Smoothed, in microseconds; 0 before the first sample, so that a path nobody has tried is tried. */
  readonly rtt: Float64Array;
  readonly rttVariation: Float64Array;
  /** The round trip that the choice of a path sees: the smoothed one, fading while the path is not taken. */
  readonly #choiceRtt: Float64Array;
  /** The shortest, without queues; forgotten slowly, because routes change. */
  readonly leastRtt: Float64Array;
  readonly penalty: Float64Array;
  readonly alive: Uint8Array;
  /** Time since which the path has been silent although something is in flight. */
  readonly silentSince: Float64Array;
  /** Probes since the last echo, and when the first of them was sent. */
  readonly unanswered: Uint8Array;
  readonly askedAt: Float64Array;
  readonly sentSegments: Float64Array;
  readonly lostSegments: Float64Array;
  aliveCount: number;
  readonly #onChange: ((path: number, isAlive: boolean) => void) | undefined;

  /** `first`: the number before that of the first transmission. `onChange` hears of paths that die and come back. */
  constructor(count: number, rails = 1, first = 0, onChange?: (path: number, isAlive: boolean) => void) {
    this.count = count;
    this.rails = rails;
    this.nextSequence = new Int32Array(count).fill(first + 1);
    this.echoedSequence = new Int32Array(count).fill(first);
    this.echoedSentAt = new Float64Array(count);
    this.echoedAt = new Float64Array(count).fill(Number.NEGATIVE_INFINITY);
    this.rtt = new Float64Array(count);
    this.rttVariation = new Float64Array(count);
    this.#choiceRtt = new Float64Array(count);
    this.leastRtt = new Float64Array(count).fill(Number.POSITIVE_INFINITY);
    this.penalty = new Float64Array(count).fill(1);
    this.alive = new Uint8Array(count).fill(1);
    this.silentSince = new Float64Array(count);
    this.unanswered = new Uint8Array(count);
    this.askedAt = new Float64Array(count);
    this.sentSegments = new Float64Array(count);
    this.lostSegments = new Float64Array(count);
    this.aliveCount = count;
    this.#onChange = onChange;
  }

  /** A sample of the round-trip time (Jacobson's estimator, RFC 6298). */
  sample(path: number, rtt: number): void {
    const smoothed = this.rtt[path]!;
    const variation = this.rttVariation[path]!;
    const least = this.leastRtt[path]!;
    this.leastRtt[path] = rtt < least ? rtt : least + MIN_RTT_DRIFT * (rtt - least);
    const isFirst = smoothed === 0;
    const next = isFirst ? rtt : smoothed + RTT_GAIN * (rtt - smoothed);
    this.rttVariation[path] = isFirst ? rtt / 2 : variation + VARIATION_GAIN * (Math.abs(smoothed - rtt) - variation);
    this.rtt[path] = next;
    this.#choiceRtt[path] = next;
    this.penalty[path] = Math.max(1, this.penalty[path]! * PENALTY_DECAY);
  }

  penalise(path: number): void {
    this.penalty[path] = Math.min(MAX_PENALTY, this.penalty[path]! * 2);
  }

  /** The path answered. */
  revive(path: number): void {
    this.unanswered[path] = 0;
    if (this.alive[path] === 1) return;
    this.alive[path] = 1;
    this.aliveCount++;
    this.penalty[path] = REVIVED_PATH_PENALTY;
    this.#onChange?.(path, true);
  }

  kill(path: number): void {
    if (this.alive[path] === 0) return;
    this.alive[path] = 0;
    this.aliveCount--;
    this.penalty[path] = MAX_PENALTY;
    this.#onChange?.(path, false);
  }

  /**
   * The better of two distinct live paths that chance picks (power of two choices), or with several rails the best of one
   * live path of each. A path is as good as its round-trip time is short, its losses are few, and few bytes are in flight
   * on it and its rail: a path that has just died collects those.
   */
  choose(random: () => number, inFlight: PathLoad): number {
    const { count } = this;
    if (count === 1) return 0;
    if (this.rails > 1 && this.aliveCount > 0) return this.#chooseRail(random, inFlight);
    const first = this.#liveFrom(Math.floor(random() * count));
    const second = this.#liveFrom((first + 1 + Math.floor(random() * (count - 1))) % count);
    const secondWins = this.#score(second, inFlight) < this.#score(first, inFlight);
    const better = secondWins ? second : first;
    this.#forgive(secondWins ? first : second, better);
    return better;
  }

  #chooseRail(random: () => number, inFlight: PathLoad): number {
    const { count, rails } = this;
    // The first one of equals is taken: each rail has its turn to be that.
    let rail = Math.floor(random() * rails);
    let best = -1;
    let leastScore = Number.POSITIVE_INFINITY;
    let worse = -1;
    for (let step = 0; step < rails; step++) {
      const inRail = Math.ceil((count - rail) / rails);
      const path = this.#liveOfRail(rail + rails * Math.floor(random() * inRail));
      rail = rail + 1 === rails ? 0 : rail + 1;
      if (path === -1) continue;
      const score = this.#score(path, inFlight);
      if (score < leastScore) {
        worse = best;
        best = path;
        leastScore = score;
      } else {
        worse = path;
      }
    }
    // One of those that were not taken, as with two choices: if all were forgiven, bad paths would be tried too often.
    if (worse !== -1) this.#forgive(worse, best);
    return best;
  }

  /**
   * Any live path of another rail than that of `path`; if there is none, any other live one; if there is none, the next
   * one. Chance decides, not how good they are: a path that was never tried seems the best, though it may be as dead.
   */
  besides(path: number, random: () => number): number {
    const { count, rails } = this;
    let at = Math.floor(random() * count);
    let sameRail = -1;
    for (let step = 0; step < count; step++) {
      if (this.alive[at] === 1) {
        if (at % rails !== path % rails) return at;
        if (at !== path && sameRail === -1) sameRail = at;
      }
      at = at + 1 === count ? 0 : at + 1;
    }
    return sameRail === -1 ? (path + 1) % count : sameRail;
  }

  /** True if `path` lives and is hardly worse than `other`. */
  isNearlyAsGood(path: number, other: number, inFlight: PathLoad): boolean {
    return this.alive[path] === 1 && this.#score(path, inFlight) <= NEARLY * this.#score(other, inFlight);
  }

  /** A path that is not taken brings no news: what was held against it fades, so that it is tried again. */
  #forgive(path: number, better: number): void {
    this.penalty[path] = Math.max(1, this.penalty[path]! * FADE);
    const rtt = this.#choiceRtt;
    const surplus = rtt[path]! - TRY_AGAIN * rtt[better]!;
    if (surplus > 0) rtt[path] = rtt[path]! - surplus * (1 - FADE);
  }

  #score(path: number, { pathBytes, railBytes }: PathLoad): number {
    const load = (PATH_LOAD_UNIT + pathBytes[path]!) * (RAIL_LOAD_UNIT + railBytes[path % this.rails]!);
    return Math.max(1, this.#choiceRtt[path]!) * this.penalty[path]! * load;
  }

  /** The path itself if it is alive, else the next live one; itself again if none is. */
  #liveFrom(path: number): number {
    if (this.aliveCount === this.count || this.aliveCount === 0) return path;
    let at = path;
    while (this.alive[at] === 0) at = at + 1 === this.count ? 0 : at + 1;
    return at;
  }

  /** The path itself if it is alive, else the next live one of its rail; -1 if none is. */
  #liveOfRail(path: number): number {
    if (this.aliveCount === this.count) return path;
    let at = path;
    while (this.alive[at] === 0) {
      at += this.rails;
      if (at >= this.count) at %= this.rails;
      if (at === path) return -1;
    }
    return at;
  }

  /** How long an answer may take on the path before silence means something. */
  timeout(path: number, floor: number): number {
    const rtt = this.rtt[path]!;
    return Math.max(floor, rtt === 0 ? 0 : rtt + 4 * this.rttVariation[path]! + rtt);
  }
}
