// What blocks read and write. Those that move in any order may not read what another one writes.

/** A block and one whose memory it reads. */
interface Dependence {
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

  /** True if one of two blocks reads memory that the other one writes. */
  depend(one: number, other: number): boolean {
    return this.#readsFrom(one, other) || this.#readsFrom(other, one);
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
      for (let writer = 0; writer < blocks; writer++) {
        if (this.#readsFrom(reader, writer)) return { reader, writer };
      }
    }
    return undefined;
  }

  #readsFrom(reader: number, writer: number): boolean {
    return this.#readFrom[reader]! < this.#writeTo[writer]! && this.#writeFrom[writer]! < this.#readTo[reader]!;
  }
}
