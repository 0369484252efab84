// The links of a UCX worker, made and ended by the agent's thread: their memory, their endpoints, their peers' processes.
import { linkWord, tableWord } from '../../../abi/ucx-words.ts';
import { randomInt } from 'node:crypto';
import { ucsStatus } from '../../../abi/ucx-structs.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { closeDescriptor } from '../../../native/udp.ts';
import { failures } from './failure.ts';
import { LinkBlock } from './link-block.ts';
import type { ProcessWatch } from './process-watch.ts';
import type { RemoteRegions } from './remote-regions.ts';
import { endLink } from './sender.ts';
import type { UcxContext } from './ucx-context.ts';
import { LINK_NUMBER_BITS, type UcxEngine } from './ucx-engine.ts';
import { LINKS } from './ucx-tables.ts';
import type { UcxTransports } from './ucx-transports.ts';

export interface UcxLinkOptions {
  /** This side's number, that `reserve` gave, and the peer's. */
  readonly number: number;
  readonly remoteNumber: number;
  readonly peer: string;
  readonly address: Uint8Array;
  readonly secretLow: number;
  readonly secretHigh: number;
  /** Descriptor of the peer's process, which becomes the table's; -1 if there is none. */
  readonly process: number;
}

interface LinkTableOptions {
  readonly context: UcxContext;
  readonly remotes: RemoteRegions;
  readonly processes: ProcessWatch;
  readonly transports: UcxTransports;
}

interface Closing {
  readonly block: LinkBlock;
  since: number;
  /** Sends that had ended when it was looked at last. */
  popped: number;
  isDisconnected: boolean;
  request: number;
}

/**
 * How long an endpoint may take to close, and UCX to return its requests. On a busy machine that is little of the
 * processor's time.
 */
const LINGER_MS = 1000;
/**
 * How long nothing of what is under way may end where the peer may live. UCX 1.13 crashes (in uct_tcp_iface_progress) when
 * an endpoint over TCP is broken off while large data flow between processes that both live; over shared memory it does not.
 */
const NETWORK_PATIENCE_MS = 2000;
const MEMORY_PATIENCE_MS = 200;
const LIVES: number = 1 << LINK_NUMBER_BITS;
const goneFailures: readonly number[] = [
  failures.lost,
  failures.processEnded,
  failures.connectionEnded,
  failures.stalled,
];

/** Everything but the constructor: under the lock. */
export class LinkTable {
  readonly #engine: UcxEngine;
  readonly #context: UcxContext;
  readonly #remotes: RemoteRegions;
  readonly #processes: ProcessWatch;
  readonly #isMemoryOnly: boolean;
  readonly #memory: NativeBlock[] = [];
  readonly #free: number[] = [];
  /** By index: how many numbers it has had. */
  readonly #lives: number[] = [];
  readonly #closing: Closing[] = [];
  /** Links whose requests UCX has not returned in time. No thread works for them; their places stay taken until it has. */
  readonly #late: Closing[] = [];
  #made = 0;

  constructor(engine: UcxEngine, { context, remotes, processes, transports }: LinkTableOptions) {
    this.#engine = engine;
    this.#context = context;
    this.#remotes = remotes;
    this.#processes = processes;
    this.#isMemoryOnly = transports.isMemoryOnly;
  }

  /** The number of a link that is to be opened. Fails with WL_CAPACITY. */
  reserve(): number {
    // The one that was given back first: messages for its last number may still come.
    const index = this.#free.shift() ?? this.#made;
    if (index >= LINKS) throw new WeftlineError('WL_CAPACITY', `More than ${LINKS} peers: close links first`);
    if (index === this.#made) this.#made += 1;
    const life = ((this.#lives[index] ?? randomInt(LIVES)) + 1) % LIVES;
    this.#lives[index] = life;
    return ((index + 1) << LINK_NUMBER_BITS) | life;
  }

  /** A number that was reserved is not needed. */
  giveBack(number: number): void {
    this.#free.push((number >>> LINK_NUMBER_BITS) - 1);
  }

  /** Fails with WL_NATIVE. */
  open(options: UcxLinkOptions): LinkBlock {
    const { number, process, peer, address } = options;
    const index = (number >>> LINK_NUMBER_BITS) - 1;
    const { tables } = this.#engine;
    const memory = (this.#memory[index] ??= new NativeBlock(LinkBlock.bytes));
    tables.linkAddress[index] = memory.address;
    const block = this.#engine.block(index);
    const { words } = block;
    // Also those that came after it had ended.
    if (words[linkWord.number] !== 0) this.#engine.discard(words[linkWord.number]!);
    const life = (words[linkWord.life]! + 1) | 0;
    words.fill(0);
    words[linkWord.life] = life;
    block.inState.fill(0);
    try {
      block.ownMemory[0] ||= this.#context.map(memory.address, LinkBlock.bytes);
      block.endpoint[0] = this.#context.connect({ address, peer, lostWord: block.lostWord });
    } catch (error) {
      if (process >= 0) closeDescriptor(process);
      throw error;
    }
    words[linkWord.number] = number;
    words[linkWord.remoteNumber] = options.remoteNumber;
    words[linkWord.secretLow] = options.secretLow;
    words[linkWord.secretHigh] = options.secretHigh;
    words[linkWord.process] = process;
    words[linkWord.isOpen] = 1;
    if (process >= 0) this.#processes.add(process, index);
    tables.active[tables.words[tableWord.activeCount]!] = index;
    tables.words[tableWord.activeCount] = tables.words[tableWord.activeCount]! + 1;
    this.#engine.link(index).greet();
    return block;
  }

  /** Ends a link; its pending operations fail. */
  close(block: LinkBlock, failure: number): void {
    const { index, words } = block;
    this.#engine.link(index).acknowledge(true);
    endLink({ block, worker: this.#engine.worker, tables: this.#engine.tables }, failure, 0);
    const link = this.#engine.link(index);
    link.step();
    words[linkWord.isOpen] = 0;
    this.#forgetProcess(words);
    const closing: Closing = { block, since: performance.now(), popped: 0, isDisconnected: false, request: 0 };
    this.#disconnect(closing, link.isDrained);
    this.#closing.push(closing);
  }

  /** Hot path. Links end that are not late. */
  get isClosing(): boolean {
    return this.#closing.length > 0;
  }

  get isLate(): boolean {
    return this.#late.length > 0;
  }

  /** UCX has closed the endpoints of all links that were closed. It aborts the process when a worker with others is destroyed. */
  get isDisconnected(): boolean {
    return this.#closing.length === 0 && this.#late.every(({ request }) => request === 0);
  }

  /** Takes note of links that have come to their end. */
  reap(): void {
    for (let at = this.#closing.length - 1; at >= 0; at--) {
      const closing = this.#closing[at] as Closing;
      const isOver = this.#isOver(closing);
      const isLate = closing.isDisconnected && performance.now() - closing.since >= LINGER_MS;
      if (!isOver && !isLate) continue;
      this.#deactivate(closing.block.index);
      this.#closing.splice(at, 1);
      if (isOver) this.#free.push(closing.block.index);
      else this.#late.push(closing);
    }
  }

  /** The same of those that are late. */
  reapLate(): void {
    for (let at = this.#late.length - 1; at >= 0; at--) {
      const closing = this.#late[at] as Closing;
      this.#engine.link(closing.block.index).step();
      if (!this.#isOver(closing)) continue;
      this.#late.splice(at, 1);
      this.#free.push(closing.block.index);
    }
  }

  /** UCX has closed the endpoint and returned all requests. */
  #isOver(closing: Closing): boolean {
    const { worker } = this.#engine;
    const { block } = closing;
    const { isDrained } = this.#engine.link(block.index);
    if (!closing.isDisconnected && !this.#disconnect(closing, isDrained)) return false;
    if (closing.request !== 0 && worker.check(closing.request) !== ucsStatus.inProgress) closing.request = 0;
    if (closing.request !== 0 || !isDrained) return false;
    this.#engine.discard(block.words[linkWord.number]!);
    this.#remotes.linkEnded(block.words[linkWord.number]!);
    return true;
  }

  /**
   * False if what is under way may still end by itself. UCX 1.13 also aborts (ucp_request.c:684, wireup_ep.c:241) when an
   * endpoint over a network is broken off before both sides have finished connecting it. They have when the far side was
   * heard; if it has sent nothing for long, and took what this side has sent, it has no endpoint.
   */
  #disconnect(closing: Closing, isDrained: boolean): boolean {
    const { block } = closing;
    const { words } = block;
    const isGone = goneFailures.includes(words[linkWord.failure]!);
    const now = performance.now();
    const popped = words[linkWord.sendsPopped]!;
    if (popped !== closing.popped) closing.since = now;
    closing.popped = popped;
    const isLate = now - closing.since >= (this.#isMemoryOnly ? MEMORY_PATIENCE_MS : NETWORK_PATIENCE_MS);
    if (!isDrained && !isGone && !isLate) return false;
    const isConnected = this.#isMemoryOnly || words[linkWord.hasHeard] === 1 || words[linkWord.lost] !== 0;
    if (!isConnected && !(isDrained && isLate)) return false;
    closing.isDisconnected = true;
    closing.since = now;
    closing.request = this.#context.disconnect(block.endpoint[0]!);
    block.endpoint[0] = 0;
    return true;
  }

  #forgetProcess(words: Int32Array): void {
    const process = words[linkWord.process]!;
    if (process < 0) return;
    words[linkWord.process] = -1;
    this.#processes.remove(process);
    closeDescriptor(process);
  }

  #deactivate(index: number): void {
    const { tables } = this.#engine;
    const count = tables.words[tableWord.activeCount]!;
    const place = tables.active.indexOf(index);
    tables.active[place] = tables.active[count - 1]!;
    tables.words[tableWord.activeCount] = count - 1;
  }
}
