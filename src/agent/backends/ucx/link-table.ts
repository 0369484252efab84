// The links of a UCX worker, made and ended by the agent's thread: their memory, their endpoints, their peers' processes.
import { randomInt } from 'node:crypto';
import { ucsStatus } from '../../../abi/ucx-structs.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { closeDescriptor } from '../../../native/udp.ts';
import { LinkBlock, linkWord } from './link-block.ts';
import type { ProcessWatch } from './process-watch.ts';
import { endLink } from './sender.ts';
import type { UcxContext } from './ucx-context.ts';
import { LINK_NUMBER_BITS, type UcxEngine } from './ucx-engine.ts';
import { LINKS, tableWord } from './ucx-tables.ts';

export interface LinkOptions {
  /** This side's number, that `reserve` gave, and the peer's. */
  readonly number: number;
  readonly remoteNumber: number;
  readonly peer: string;
  readonly address: Uint8Array;
  readonly secretLow: number;
  readonly secretHigh: number;
  /** UCX reports dead peers in mode `peer`, for which it cannot use shared memory. */
  readonly mode: 'peer' | 'none';
  /** Descriptor of the peer's process, which becomes the table's; -1 if there is none. */
  readonly process: number;
}

interface Closing {
  readonly block: LinkBlock;
  readonly mode: 'peer' | 'none';
  readonly since: number;
  request: number;
}

/** How long a link that UCX cannot break off may take to end what is under way. */
const LINGER_MS = 200;

/** Everything but the constructor: under the lock. */
export class LinkTable {
  readonly #engine: UcxEngine;
  readonly #context: UcxContext;
  readonly #processes: ProcessWatch;
  readonly #memory: NativeBlock[] = [];
  readonly #free: number[] = [];
  readonly #processOf = new Map<number, number>();
  readonly #modeOf = new Map<number, 'peer' | 'none'>();
  readonly #closing: Closing[] = [];
  #made = 0;
  #hasLost = false;

  constructor(engine: UcxEngine, context: UcxContext, processes: ProcessWatch) {
    this.#engine = engine;
    this.#context = context;
    this.#processes = processes;
  }

  /** The number of a link that is to be opened. Fails with WL_CAPACITY. */
  reserve(): number {
    const index = this.#free.pop() ?? this.#made++;
    if (index >= LINKS) throw new WeftlineError('WL_CAPACITY', `More than ${LINKS} peers: close links first`);
    return ((index + 1) << LINK_NUMBER_BITS) | randomInt(1 << LINK_NUMBER_BITS);
  }

  /** A number that was reserved is not needed. */
  giveBack(number: number): void {
    this.#free.push((number >>> LINK_NUMBER_BITS) - 1);
  }

  /** Fails with WL_NATIVE. */
  open(options: LinkOptions): LinkBlock {
    const { number, mode, process, peer, address } = options;
    const index = (number >>> LINK_NUMBER_BITS) - 1;
    const { tables } = this.#engine;
    this.#memory[index] ??= new NativeBlock(LinkBlock.bytes);
    tables.linkAddress[index] = this.#memory[index].address;
    const block = this.#engine.block(index);
    const { words } = block;
    const life = ((words[linkWord.life] as number) + 1) | 0;
    words.fill(0);
    words[linkWord.life] = life;
    block.inState.fill(0);
    block.endpoint[0] = this.#context.connect({ address, mode, peer, lostWord: block.lostWord });
    words[linkWord.number] = number;
    words[linkWord.remoteNumber] = options.remoteNumber;
    words[linkWord.secretLow] = options.secretLow;
    words[linkWord.secretHigh] = options.secretHigh;
    words[linkWord.isOpen] = 1;
    this.#modeOf.set(index, mode);
    if (process >= 0) {
      this.#processOf.set(index, process);
      this.#processes.add(process, index);
    }
    tables.active[tables.words[tableWord.activeCount] as number] = index;
    tables.words[tableWord.activeCount] = (tables.words[tableWord.activeCount] as number) + 1;
    return block;
  }

  /** Ends a link; its pending operations fail. */
  close(block: LinkBlock, failure: number): void {
    const { index, words } = block;
    endLink({ block, worker: this.#engine.worker, tables: this.#engine.tables }, failure, 0);
    this.#engine.link(index).step();
    words[linkWord.isOpen] = 0;
    this.forgetProcess(index);
    const mode = this.#modeOf.get(index) ?? 'none';
    const request = this.#context.disconnect(block.endpoint[0] as number, mode);
    this.#closing.push({ block, mode, request, since: performance.now() });
  }

  /** It has ended, or is not to be watched. */
  forgetProcess(index: number): void {
    const process = this.#processOf.get(index);
    if (process === undefined) return;
    this.#processOf.delete(index);
    this.#processes.remove(process);
    closeDescriptor(process);
  }

  get isClosing(): boolean {
    return this.#closing.length > 0;
  }

  /** Takes note of links that have come to their end. True if UCX holds none any more. */
  reap(): boolean {
    for (let at = this.#closing.length - 1; at >= 0; at--) {
      const closing = this.#closing[at] as Closing;
      const { block, mode, since } = closing;
      const link = this.#engine.link(block.index);
      if (closing.request !== 0 && this.#engine.worker.check(closing.request) !== ucsStatus.inProgress)
        closing.request = 0;
      const isLate = mode === 'none' && performance.now() - since > LINGER_MS;
      const isClosed = closing.request === 0;
      if (!(isClosed && (mode === 'peer' || link.isDrained)) && !isLate) continue;
      const wasDrained = link.isDrained;
      link.abandon();
      this.#deactivate(block.index);
      this.#closing.splice(at, 1);
      // Without errors from UCX, an endpoint to a process that was killed does not close: its memory stays.
      if (isClosed && wasDrained) this.#free.push(block.index);
      else this.#hasLost ||= !isClosed;
    }
    return this.#closing.length === 0 && !this.#hasLost;
  }

  #deactivate(index: number): void {
    const { tables } = this.#engine;
    const count = tables.words[tableWord.activeCount] as number;
    const place = tables.active.indexOf(index);
    tables.active[place] = tables.active[count - 1] as number;
    tables.words[tableWord.activeCount] = count - 1;
  }
}
