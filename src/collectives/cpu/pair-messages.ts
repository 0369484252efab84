// Messages between pairs of ranks: pieces through channels in the senders' windows, all messages of a group at once.
import { type CollectiveRegions, type Mirrors, pieceHeader, type RankParts } from './window-regions.ts';
import { wordOffsets } from '../../abi/layout.ts';
import { dtypes } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { dtypeNumber, dtypeOf, type PairMessage } from '../collective-call.ts';
import type { DataPlaces, Mover, StepParts } from './movements.ts';
import type { RankBoard } from './rank-board.ts';
import type { Steps } from '../../group/steps.ts';

const headerWord = wordOffsets(pieceHeader);

/** A piece whose bytes the mover has under way. */
interface MovingPiece {
  readonly message: PairMessage;
  readonly bytes: number;
  /** Address of its header, of a piece that is sent. */
  readonly at: number;
}

export class PairMessages implements Steps {
  readonly name = 'send and recv';
  progress = 0;
  readonly #mover: Mover;
  readonly #places: DataPlaces;
  readonly #board: RankBoard;
  readonly #parts: RankParts;
  readonly #mirrors: Mirrors | undefined;
  readonly #regions: CollectiveRegions;
  readonly #words: Uint32Array;
  #messages: readonly PairMessage[] = [];
  /** Bytes of each message that have moved, -1 before its first piece and -2 after its last one. */
  #moved: number[] = [];
  /** The pass in which a message to or from a peer was not yet over, so that later ones wait for it, by peer. */
  readonly #heldSends: Float64Array;
  readonly #heldReceives: Float64Array;
  #pass = 0;
  /** Pieces that are told of together, when the mover has done them; by peer, how many of them go there or come from there. */
  readonly #moving: MovingPiece[] = [];
  readonly #sending: Int32Array;
  readonly #receiving: Int32Array;

  constructor(device: CpuDevice, { parts, board, regions, mirrors, mover, places }: StepParts) {
    this.#mover = mover;
    this.#places = places;
    this.#parts = parts;
    this.#mirrors = mirrors;
    this.#board = board;
    this.#regions = regions;
    this.#words = new Uint32Array(device.memory.buffer);
    this.#heldSends = new Float64Array(board.ranks);
    this.#heldReceives = new Float64Array(board.ranks);
    this.#sending = new Int32Array(board.ranks);
    this.#receiving = new Int32Array(board.ranks);
  }

  /** Messages to this rank itself are paired by their order; their sizes were checked. */
  begin(messages: readonly PairMessage[]): void {
    this.#messages = messages;
    this.#moved = messages.map(() => NOT_BEGUN);
    this.#moveWithin();
  }

  advance(): boolean {
    while (true) {
      if (!this.#tell()) return false;
      const isOver = this.#beginPieces();
      if (this.#moving.length === 0) {
        // The tensors of the messages are the caller's alone again.
        if (isOver) this.#messages = [];
        return isOver;
      }
      this.#mover.mark();
    }
  }

  /** Begins what can begin. True when all messages are over, or their last pieces under way. */
  #beginPieces(): boolean {
    this.#pass += 1;
    let isDone = true;
    for (const [index, message] of this.#messages.entries()) {
      if (this.#moved[index] === OVER) continue;
      const held = message.direction === 'send' ? this.#heldSends : this.#heldReceives;
      if (held[message.peer] === this.#pass) continue;
      if (this.#move(message, index)) continue;
      held[message.peer] = this.#pass;
      isDone = false;
    }
    return isDone;
  }

  /** Tells the peers of the pieces that were moved. False while they are under way. */
  #tell(): boolean {
    if (!this.#mover.isSettled()) return false;
    for (const { message, at, bytes } of this.#moving) {
      const { me } = this.#board;
      const { peer } = message;
      if (message.direction === 'send') {
        this.#mirrors?.putTo(peer, at - this.#parts.addresses[me]!, pieceHeader.size + bytes);
        this.#board.setPairPieces('sent', me, peer, (this.#board.pairPieces('sent', me, peer) + 1) | 0);
      } else {
        this.#board.setPairPieces('taken', peer, me, (this.#board.pairPieces('taken', peer, me) + 1) | 0);
      }
      this.progress += 1;
    }
    this.#moving.length = 0;
    this.#sending.fill(0);
    this.#receiving.fill(0);
    return true;
  }

  missing(): number[] {
    if (this.#moving.length > 0) return [this.#board.me];
    const peers = this.#messages.filter((_, index) => this.#moved[index] !== OVER).map(({ peer }) => peer);
    return [...new Set(peers)];
  }

  /** True when it is over. */
  #move(message: PairMessage, index: number): boolean {
    while (this.#moved[index] !== OVER) {
      const isFirst = this.#moved[index] === NOT_BEGUN;
      const before = Math.max(0, this.#moved[index]!);
      const bytes =
        message.direction === 'send' ? this.#send(message, before) : this.#receive(message, before, isFirst);
      if (bytes < 0) return false;
      this.#moved[index] = before + bytes === message.bytes ? OVER : before + bytes;
      this.progress += 1;
    }
    return true;
  }

  /** Bytes of the piece, -1 if there is no room for it yet. */
  #send(message: PairMessage, from: number): number {
    const { me } = this.#board;
    const { channel } = this.#regions;
    const { peer, address, bytes, dtype } = message;
    const sent = (this.#board.pairPieces('sent', me, peer) + this.#sending[peer]!) | 0;
    if (((sent - this.#board.pairPieces('taken', me, peer)) | 0) >= channel.slots) return -1;
    const piece = Math.min(channel.bytes, bytes - from);
    const offset = this.#slotOffset(peer, sent);
    const at = this.#parts.addresses[me]! + offset;
    const header = at / 4;
    this.#words[header + headerWord.messageBytes] = bytes;
    this.#words[header + headerWord.dtype] = dtypeNumber(dtype);
    this.#words[header + headerWord.bytes] = piece;
    const isElsewhere = this.#mirrors?.has(peer) === true;
    const part = isElsewhere ? this.#places.outgoing : this.#places.addresses[me]!;
    this.#mover.copy(part + offset + pieceHeader.size, address + from, piece);
    this.#moving.push({ message, at, bytes: piece });
    this.#sending[peer]! += 1;
    if (this.#mover.isImmediate) this.#tell();
    return piece;
  }

  /** Bytes of the piece, -1 if none has come. */
  #receive(message: PairMessage, to: number, isFirst: boolean): number {
    const { me } = this.#board;
    const { peer, address } = message;
    const taken = (this.#board.pairPieces('taken', peer, me) + this.#receiving[peer]!) | 0;
    if (this.#board.pairPieces('sent', peer, me) === taken) return -1;
    const offset = this.#slotOffset(me, taken);
    const at = this.#parts.addresses[peer]! + offset;
    const header = at / 4;
    if (isFirst) this.#check(message, header);
    const piece = Math.min(this.#words[header + headerWord.bytes]!, message.bytes - to);
    this.#mover.copy(address + to, this.#places.addresses[peer]! + offset + pieceHeader.size, piece);
    this.#moving.push({ message, at, bytes: piece });
    this.#receiving[peer]! += 1;
    if (this.#mover.isImmediate) this.#tell();
    return piece;
  }

  #check({ peer, bytes, dtype }: PairMessage, header: number): void {
    const sentBytes = this.#words[header + headerWord.messageBytes]!;
    const sentDtype = dtypeOf(this.#words[header + headerWord.dtype]!);
    if (sentBytes === bytes && sentDtype === dtype) return;
    const { ranks, index } = this.#parts;
    const [from, to] = [ranks[peer], ranks[index]];
    const sent = `${sentBytes / dtypes[sentDtype ?? 'u8'].bytes} ${sentDtype ?? 'unknown'}`;
    const expected = `${bytes / dtypes[dtype].bytes} ${dtype}`;
    throw new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `Rank ${from} sends ${sent} to rank ${to}, whose recv expects ${expected}; a send and its recv must have the same count and dtype`,
      { details: { operation: 'recv', rank: from, peer: to, sent, expected } },
    );
  }

  /** Offset of the slot of that piece in the channel to a rank, which lies in the sender's window. */
  #slotOffset(to: number, piece: number): number {
    const { regions, channel } = this.#regions;
    const slot = pieceHeader.size + channel.bytes;
    // The number of slots is a power of two, so that pieces may wrap.
    return regions.channels.offset + (to * channel.slots + (piece & (channel.slots - 1))) * slot;
  }

  #moveWithin(): void {
    const { me } = this.#board;
    const indices = [...this.#messages.keys()].filter((index) => this.#messages[index]!.peer === me);
    const sends = indices.filter((index) => this.#messages[index]!.direction === 'send');
    const receives = indices.filter((index) => this.#messages[index]!.direction === 'recv');
    for (const [place, index] of sends.entries()) {
      const from = this.#messages[index]!;
      const to = this.#messages[receives[place]!]!;
      if (to.address !== from.address) this.#mover.copy(to.address, from.address, from.bytes);
    }
    for (const index of indices) this.#moved[index] = OVER;
  }
}

const NOT_BEGUN = -1;
const OVER = -2;
