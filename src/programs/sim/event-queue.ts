// Future events by time, and by order of insertion where times are equal: a heap of four children per node on typed arrays.

/** Subjects are below this; kinds are 0 to 15. */
const SUBJECTS = 2 ** 28;

/** No allocation per event: `pop` leaves what it took in `time`, `kind` and `subject`. */
export class EventQueue {
  time = 0;
  kind = 0;
  subject = 0;
  #size = 0;
  #sequence = 0;
  #times = new Float64Array(1024);
  #sequences = new Float64Array(1024);
  #events = new Uint32Array(1024);

  get size(): number {
    return this.#size;
  }

  /** Time in microseconds, not before that of the last event popped. */
  push(time: number, kind: number, subject: number): void {
    if (this.#size === this.#times.length) this.#grow();
    const times = this.#times;
    const sequences = this.#sequences;
    const events = this.#events;
    let at = this.#size;
    this.#size += 1;
    while (at > 0) {
      const parent = (at - 1) >> 2;
      // A parent with the same time was inserted before.
      if (times[parent]! <= time) break;
      times[at] = times[parent]!;
      sequences[at] = sequences[parent]!;
      events[at] = events[parent]!;
      at = parent;
    }
    times[at] = time;
    sequences[at] = this.#sequence;
    this.#sequence += 1;
    events[at] = kind * SUBJECTS + subject;
  }

  /** Takes the first event; false when there is none. */
  pop(): boolean {
    if (this.#size === 0) return false;
    const event = this.#events[0]!;
    this.time = this.#times[0]!;
    this.kind = Math.floor(event / SUBJECTS);
    this.subject = event % SUBJECTS;
    this.#size -= 1;
    if (this.#size > 0) this.#sink();
    return true;
  }

  /** The last node moves to the root and down until none of its children comes before it. */
  #sink(): void {
    const times = this.#times;
    const sequences = this.#sequences;
    const events = this.#events;
    const size = this.#size;
    const time = times[size]!;
    const sequence = sequences[size]!;
    const event = events[size]!;
    let at = 0;
    for (;;) {
      const first = 4 * at + 1;
      if (first >= size) break;
      let best = first;
      let bestTime = times[first]!;
      const end = Math.min(first + 4, size);
      for (let child = first + 1; child < end; child += 1) {
        const childTime = times[child]!;
        if (childTime < bestTime || (childTime === bestTime && sequences[child]! < sequences[best]!)) {
          best = child;
          bestTime = childTime;
        }
      }
      if (bestTime > time || (bestTime === time && sequences[best]! > sequence)) break;
      times[at] = bestTime;
      sequences[at] = sequences[best]!;
      events[at] = events[best]!;
      at = best;
    }
    times[at] = time;
    sequences[at] = sequence;
    events[at] = event;
  }

  #grow(): void {
    const capacity = this.#times.length * 2;
    const times = new Float64Array(capacity);
    const sequences = new Float64Array(capacity);
    const events = new Uint32Array(capacity);
    times.set(this.#times);
    sequences.set(this.#sequences);
    events.set(this.#events);
    this.#times = times;
    this.#sequences = sequences;
    this.#events = events;
  }
}
