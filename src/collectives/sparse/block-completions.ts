// Tells a kernel, or another thread, how far the output of a call is done: by a flag word that it polls, part by part, in order.

/**
 * The flag word. It goes up by one for each part, once whoever sees that sees the part's bytes. `VisibilityFlush`
 * (native/verbs) is one for parts that a network card has written into memory of a GPU; MemoryFlag is one for bytes that this
 * processor has copied.
 */
export interface CompletionFlag {
  /** A part is written. `isLast`: isDone will be asked for, so this one's request is signalled. False if it must be told again. */
  block(isLast: boolean): boolean;
  /** Takes in what is done. */
  poll(): void;
  /** All parts up to the last one are told. */
  readonly isDone: boolean;
}

/** An i32 in memory that threads share. */
export class MemoryFlag implements CompletionFlag {
  readonly isDone = true;
  readonly #word: Int32Array;

  constructor(word: Int32Array) {
    this.#word = word;
  }

  block(): boolean {
    // ORDER: sequentially consistent, so behind the bytes of the part.
    Atomics.add(this.#word, 0, 1);
    Atomics.notify(this.#word, 0);
    return true;
  }

  poll(): void {}
}

export class BlockCompletions {
  readonly #flag: CompletionFlag;
  readonly #parts: number;
  readonly #blocksPerPart: number;
  readonly #blocks: number;
  #told = 0;

  /** `blocks`: of the call; the last part may have fewer than `blocksPerPart`. */
  constructor(
    flag: CompletionFlag,
    { blocks, blocksPerPart }: { readonly blocks: number; readonly blocksPerPart: number },
  ) {
    this.#flag = flag;
    this.#blocks = blocks;
    this.#blocksPerPart = blocksPerPart;
    this.#parts = Math.ceil(blocks / blocksPerPart);
  }

  /** Hot path. The first blocks, so many, are final. True when all parts are, and are told. */
  processCompletions(finalBlocks: number): boolean {
    const flag = this.#flag;
    const isAll = finalBlocks >= this.#blocks;
    const parts = isAll ? this.#parts : Math.floor(finalBlocks / this.#blocksPerPart);
    while (this.#told < parts && flag.block(this.#told + 1 === this.#parts)) this.#told++;
    flag.poll();
    return this.#told === this.#parts && flag.isDone;
  }
}
