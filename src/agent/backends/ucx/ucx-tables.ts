// What the threads of a process share about its UCX worker as a whole, in native memory: links, regions, transfers, channels.
import { TABLE_WORDS, tableWord } from '../../../abi/ucx-words.ts';
import { UCX_CONTROL_BYTES } from '../../../abi/ucx-message.ts';
import { ArenaLayout } from './arena-layout.ts';

/** So that their numbers stay below UCX_LINK_NUMBERS. */
export const LINKS = 1023;
export const REGIONS = 65_536;
/** Regions of peers that may be used directly. */
export const REMOTES = 65_536;
/** Prepared transfers. */
export const SLOTS = 4096;
export const CHANNELS = 1024;
/** Receives of control messages that are posted ahead. A power of two. */
export const RECEIVES = 64;

export class UcxTables {
  static readonly bytes: number = ((): number => {
    const arena = ArenaLayout.counting();
    void new UcxTables(arena);
    return arena.end;
  })();

  readonly words: Int32Array;
  readonly receiveRequest: Float64Array;
  readonly receives: ReturnType<ArenaLayout['bytes']>;
  /** Indices of links that are worked for, and where each link's block lies. */
  readonly active: Int32Array;
  readonly linkAddress: Float64Array;

  /** By region: 1 while peers may use it, and what of UCX still does. */
  readonly regionIsOpen: Int32Array;
  readonly regionUses: Int32Array;
  readonly regionKey: Int32Array;
  readonly regionAddress: Float64Array;
  readonly regionBytes: Float64Array;
  /** UCX's handle, 0 if there is none: see UcxContext.map. */
  readonly regionMemory: Float64Array;

  /** By region of a peer: its link's number, name there, native address, UCX's handle. `state` is one of remoteStates. */
  readonly remoteState: Int32Array;
  readonly remoteLink: Int32Array;
  readonly remoteRegion: Int32Array;
  readonly remoteKey: Int32Array;
  readonly remoteAddress: Float64Array;
  readonly remoteHandle: Float64Array;

  /** By transfer. `state` is also read without the lock. */
  readonly state: Int32Array;
  readonly failure: Int32Array;
  readonly failureDetail: Int32Array;
  /** Its parts, of which `generation` tells those of another transfer in the same slot. */
  readonly generation: Int32Array;
  readonly partCount: Int32Array;
  readonly partAddress: Float64Array;
  /** Its place in the link's queue, and how many sends the link had posted after its last one: see memory-use.ts. */
  readonly entry: Int32Array;
  readonly sendsAfter: Int32Array;

  /** By channel. `delivered` and `channelFailure` are also read without the lock. */
  readonly channelSendsAfter: Int32Array;
  readonly delivered: Int32Array;
  readonly channelFailure: Int32Array;
  readonly channelDetail: Int32Array;

  constructor(arena: ArenaLayout) {
    this.words = arena.integers(TABLE_WORDS);
    this.receiveRequest = arena.numbers(RECEIVES);
    this.active = arena.integers(LINKS);
    this.linkAddress = arena.numbers(LINKS);
    this.regionIsOpen = arena.integers(REGIONS);
    this.regionUses = arena.integers(REGIONS);
    this.regionKey = arena.integers(REGIONS);
    this.regionAddress = arena.numbers(REGIONS);
    this.regionBytes = arena.numbers(REGIONS);
    this.regionMemory = arena.numbers(REGIONS);
    this.remoteState = arena.integers(REMOTES);
    this.remoteLink = arena.integers(REMOTES);
    this.remoteRegion = arena.integers(REMOTES);
    this.remoteKey = arena.integers(REMOTES);
    this.remoteAddress = arena.numbers(REMOTES);
    this.remoteHandle = arena.numbers(REMOTES);
    this.state = arena.integers(SLOTS);
    this.failure = arena.integers(SLOTS);
    this.failureDetail = arena.integers(SLOTS);
    this.generation = arena.integers(SLOTS);
    this.partCount = arena.integers(SLOTS);
    this.partAddress = arena.numbers(SLOTS);
    this.entry = arena.integers(SLOTS);
    this.sendsAfter = arena.integers(SLOTS);
    this.channelSendsAfter = arena.integers(CHANNELS);
    this.delivered = arena.integers(CHANNELS);
    this.channelFailure = arena.integers(CHANNELS);
    this.channelDetail = arena.integers(CHANNELS);
    this.receives = arena.bytes(RECEIVES * UCX_CONTROL_BYTES);
  }

  /** There is something for the agent's thread to look at. ORDER: after it can be seen. */
  tell(): void {
    Atomics.add(this.words, tableWord.news, 1);
  }

  /** For the peer, all messages of one operation belong together. */
  newOperation(): number {
    const next = (this.words[tableWord.nextOperation]! + 1) | 0;
    this.words[tableWord.nextOperation] = next === 0 ? 1 : next;
    return this.words[tableWord.nextOperation]!;
  }
}
