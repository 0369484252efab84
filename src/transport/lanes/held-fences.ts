// Signals and flushes that an engine holds back until parts of earlier writes of their flow, on other lanes, have ended; and
// those behind them, for these keep their order.
import { type Gates, NONE } from './gates.ts';

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
  /** By connection and flow, oldest first. */
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
