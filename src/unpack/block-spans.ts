// What the blocks of one launch read and write. They move in any order, so none may read what another one writes.

/** A block and one whose memory it reads. */
export interface Dependence {
  readonly reader: number;
  readonly writer: number;
}

export class BlockSpans {
  readonly #readFrom: Float64Array;
  readonly #readTo: Float64Array;
  readonly #writeFrom: Float64Array;
  readonly #writeTo: Float64Array;

  constructor(blocks: number) {
    this.#readFrom = new Float64Array(blocks);
    this.#readTo = new Float64Array(blocks);
    this.#writeFrom = new Float64Array(blocks);
    this.#writeTo = new Float64Array(blocks);
  }

  set(block: number, side: 'read' | 'write', address: number, bytes: number): void {
    (side === 'read' ? this.#readFrom : this.#writeFrom)[block] = address;
    (side === 'read' ? this.#readTo : this.#writeTo)[block] = address + bytes;
  }

  /** Of a block that moves nothing. */
  leaveOut(block: number): void {
    this.set(block, 'read', Infinity, 0);
    this.set(block, 'write', Infinity, 0);
  }

  /** Blocks are compared one by one only if all that is read and all that is written lie across each other. */
  findDependence(blocks: number): Dependence | undefined {
    let readFrom = Infinity;
    let readTo = 0;
    let writeFrom = Infinity;
    let writeTo = 0;
    for (let block = 0; block < blocks; block++) {
      if (this.#readFrom[block] === Infinity) continue;
      readFrom = Math.min(readFrom, this.#readFrom[block]!);
      readTo = Math.max(readTo, this.#readTo[block]!);
      writeFrom = Math.min(writeFrom, this.#writeFrom[block]!);
      writeTo = Math.max(writeTo, this.#writeTo[block]!);
    }
    if (readFrom >= writeTo || writeFrom >= readTo) return undefined;
    for (let reader = 0; reader < blocks; reader++) {
      const from = this.#readFrom[reader]!;
      const to = this.#readTo[reader]!;
      for (let writer = 0; writer < blocks; writer++) {
        if (from < this.#writeTo[writer]! && this.#writeFrom[writer]! < to) return { reader, writer };
      }
    }
    return undefined;
  }
}
