// The order of flows over several lanes, on the side that posts: writes on other lanes than their flow's home hold a gate
// shut, for which signals and flushes of the flow wait.
import { type GatePool, NONE } from './gates.ts';

export class FlowOrder {
  readonly #pool: GatePool;
  /** By flow: the gate of its writes since the last signal or flush that had to wait. */
  readonly #gates = new Map<number, number>();

  constructor(pool: GatePool) {
    this.#pool = pool;
  }

  /** The gate of a flow's writes on other lanes than its home. NONE if no gate is left: they then stay on the home lane. */
  gateFor(flow: number): number {
    const known = this.#gates.get(flow);
    if (known !== undefined) return known;
    let gate = this.#pool.take();
    if (gate === NONE && this.#sweep()) gate = this.#pool.take();
    if (gate !== NONE) this.#gates.set(flow, gate);
    return gate;
  }

  /** Hot path. The gate that a signal or flush of the flow must wait for; NONE if it may go at once. */
  fence(flow: number): number {
    const gate = this.#gates.size === 0 ? undefined : this.#gates.get(flow);
    return gate === undefined || this.#pool.isOpen(gate) ? NONE : gate;
  }

  /**
   * A signal or flush waits for the flow's gate, whoever posted it frees the gate when it has ended: later writes get
   * another, so that it does not wait for those as well.
   */
  pass(flow: number): void {
    this.#gates.delete(flow);
  }

  /** Gives back the gates that nobody waits for. */
  close(): void {
    for (const gate of this.#gates.values()) this.#pool.free(gate);
    this.#gates.clear();
  }

  /** Gives back gates without parts. True if there were any. */
  #sweep(): boolean {
    const before = this.#gates.size;
    for (const [flow, gate] of this.#gates) {
      if (!this.#pool.isOpen(gate)) continue;
      this.#gates.delete(flow);
      this.#pool.free(gate);
    }
    return this.#gates.size < before;
  }
}
