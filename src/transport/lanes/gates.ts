// Gates: counters, which several threads share, of parts that signals and flushes of a flow must come after. Whoever posts
// opens a gate and counts parts in; engines count them out as they end; one engine waits for zero. Hot path: no allocation.

/** Parts are counted in the bits below; the engine that waits stands above them, counted from 1, once one waits. */
const WAITER_SHIFT = 24;
const COUNT = (1 << WAITER_SHIFT) - 1;
/** How many gates one look for a free one goes through. */
const MAX_LOOKS = 64;

/** No gate; also no engine. */
export const NONE = -1;

/** The engines' side: `words` are shared, a gate is an index. */
export class Gates {
  protected readonly words: Int32Array;

  constructor(words: Int32Array) {
    this.words = words;
  }

  /** True once all parts that were counted in have ended. */
  isOpen(gate: number): boolean {
    return (Atomics.load(this.words, gate) & COUNT) === 0;
  }

  /** A part has ended. Returns the engine that waits for it, if it was the last; NONE otherwise. */
  leave(gate: number): number {
    const before = Atomics.sub(this.words, gate, 1);
    return (before & COUNT) === 1 ? (before >> WAITER_SHIFT) - 1 : NONE;
  }
}

/** The side of the thread that posts: it also says which gates are in use. */
export class GatePool extends Gates {
  /** Gates that parts are counted into, or that somebody waits for. */
  readonly #used: Uint8Array;
  #next = 0;

  constructor(words: Int32Array) {
    super(words);
    this.#used = new Uint8Array(words.length);
  }

  /** A gate without parts; NONE if none is free: the caller then does without. */
  take(): number {
    for (let look = 0; look < Math.min(MAX_LOOKS, this.words.length); look++) {
      const gate = this.#next;
      this.#next = (gate + 1) % this.words.length;
      // One whose last waiter's request ended early may still have parts to count out.
      if (this.#used[gate] === 1 || !this.isOpen(gate)) continue;
      Atomics.store(this.words, gate, 0);
      this.#used[gate] = 1;
      return gate;
    }
    return NONE;
  }

  /** Counts parts in, before they are posted. */
  enter(gate: number, parts: number): void {
    Atomics.add(this.words, gate, parts);
  }

  /** The engine is told from now on when the gate opens. False if it is open already. */
  wait(gate: number, engine: number): boolean {
    // ORDER: the waiter first, then the look: the part that ends last either finds the waiter, or is seen to have ended.
    Atomics.or(this.words, gate, (engine + 1) << WAITER_SHIFT);
    return !this.isOpen(gate);
  }

  /** Nothing more is counted in, and nobody waits any more. */
  free(gate: number): void {
    this.#used[gate] = 0;
  }
}

// Signals and flushes that an engine holds back until parts of earlier writes of their flow, on other lanes, have ended; and
// those behind them, for these keep their order.

interface Held<Operation> {
  readonly operation: Operation;
  readonly gate: number;
}

/** What `release` needs to know of an operation. */
export interface HeldOperation {
  readonly slot: number;
  readonly connection: number;
  readonly flow: number;
}

export class HeldFences<Operation extends HeldOperation> {
  readonly #gates: Gates;
  readonly #post: (operation: Operation) => void;
  /** Operations by connection and flow, oldest first. */
  readonly #queues = new Map<number, Held<Operation>[]>();

  /** `post` carries an operation out. */
  constructor(gates: Gates, post: (operation: Operation) => void) {
    this.#gates = gates;
    this.#post = post;
  }

  /** Hot path. True if a signal or flush must wait: for its gate, or behind others of its flow. */
  mustHold({ connection, flow }: HeldOperation, gate: number): boolean {
    if (gate !== NONE && !this.#gates.isOpen(gate)) return true;
    return this.#queues.size > 0 && this.#queues.has(keyOf(connection, flow));
  }

  /** `operation` is kept. */
  hold(operation: Operation, gate: number): void {
    const key = keyOf(operation.connection, operation.flow);
    const queue = this.#queues.get(key) ?? [];
    queue.push({ operation, gate });
    this.#queues.set(key, queue);
  }

  /** Gates may have opened. */
  release(): void {
    for (const [key, queue] of this.#queues) {
      let first = queue[0];
      while (first !== undefined && (first.gate === NONE || this.#gates.isOpen(first.gate))) {
        queue.shift();
        this.#post(first.operation);
        first = queue[0];
      }
      if (first === undefined) this.#queues.delete(key);
    }
  }

  /** Takes an operation out; those behind it may then go. False if it is not held. */
  cancel(slot: number): boolean {
    for (const queue of this.#queues.values()) {
      const at = queue.findIndex(({ operation }) => operation.slot === slot);
      if (at === -1) continue;
      queue.splice(at, 1);
      this.release();
      return true;
    }
    return false;
  }

  /** Takes out those of a connection that has ended. */
  end(connection: number): Operation[] {
    const ended: Operation[] = [];
    for (const [key, queue] of this.#queues) {
      if (queue[0]?.operation.connection !== connection) continue;
      ended.push(...queue.map(({ operation }) => operation));
      this.#queues.delete(key);
    }
    return ended;
  }
}

function keyOf(connection: number, flow: number): number {
  return connection * 65_536 + flow;
}
