// Which regions each side of a link lets the other put into and get from directly, and how that ends. Under the lock.
import { linkWord, remoteStates, tableWord } from '../../../abi/ucx-words.ts';
import { ucxMessageKinds as kinds } from '../../../abi/ucx-message.ts';
import type { Direct } from './direct.ts';
import { failures } from './failure.ts';
import { headerWord as at } from './message-header.ts';
import type { Notices } from './notices.ts';
import { endLink, type LinkTools } from './sender.ts';
import { REGIONS } from './ucx-tables.ts';

/*
 * Direct puts and gets are carried out by devices, which refuse those with a wrong key or range, and then the connection is
 * lost. So that this happens to faulty peers alone, a peer uses a region by messages, which are checked here, until it is
 * granted, and a region that is deregistered is withdrawn first. Memory is safe without any of this: it is the caller's
 * again only when it is unmapped, and from then on the device refuses.
 */

/** Regions that the far side is asked at a time to release. */
const MAX_WITHDRAWALS = 256;

export class Rights {
  readonly #tools: LinkTools;
  readonly #notices: Notices;
  readonly #direct: Direct;

  constructor(tools: LinkTools, notices: Notices, direct: Direct) {
    this.#tools = tools;
    this.#notices = notices;
    this.#direct = direct;
  }

  /** The far side has used the region by a message. Grants it, once. */
  grant(region: number): void {
    const { block, tables } = this.#tools;
    if (tables.words[tableWord.putsAreNative] === 0 || this.holds(region) || !this.#notices.hasRoom) return;
    put(block.granted, region, true);
    tables.regionUses[region] = tables.regionUses[region]! + 1;
    this.#notices.tell(kinds.grant, region, tables.regionKey[region]!);
  }

  /** Of a region that is deregistered, as often as one likes. */
  withdraw(region: number): void {
    const { block, tables } = this.#tools;
    const link = block.words;
    if (!has(block.granted, region)) return;
    if (link[linkWord.withdrawals]! >= MAX_WITHDRAWALS || !this.#notices.hasRoom) return;
    put(block.granted, region, false);
    put(block.withdrawn, region, true);
    link[linkWord.withdrawals] = link[linkWord.withdrawals]! + 1;
    this.#notices.tell(kinds.withdraw, region, tables.regionKey[region]!);
  }

  /** The far side may use the region directly, or has not said that it does no more. */
  holds(region: number): boolean {
    const { granted, withdrawn } = this.#tools.block;
    return has(granted, region) || has(withdrawn, region);
  }

  /** The far side says something of rights. */
  heard(words: Uint32Array, base: number): void {
    const kind = words[base + at.kind]!;
    const region = words[base + at.region]!;
    const key = words[base + at.key]! | 0;
    if (kind === kinds.release) this.#released(region);
    else if (kind === kinds.grant) this.#note(region, key, remoteStates.granted);
    else if (!this.#notices.hasRoom) endLink(this.#tools, failures.defect, 0);
    else {
      this.#note(region, key, remoteStates.withdrawn);
      // ORDER: the release waits for the flush, because puts that have ended may still be on their way.
      this.#direct.flushPuts();
      this.#notices.tell(kinds.release, region, key);
    }
  }

  /** The link has ended. */
  giveUp(): void {
    const { block, tables } = this.#tools;
    for (const bits of [block.granted, block.withdrawn]) {
      for (let word = 0; word < bits.length; word++) {
        if (bits[word] === 0) continue;
        for (let region = word * 32; region < word * 32 + 32; region++) {
          if (has(bits, region)) tables.regionUses[region] = tables.regionUses[region]! - 1;
        }
        bits[word] = 0;
      }
    }
  }

  #released(region: number): void {
    const { block, tables } = this.#tools;
    if (region >= REGIONS || !has(block.withdrawn, region)) return;
    put(block.withdrawn, region, false);
    tables.regionUses[region] = tables.regionUses[region]! - 1;
    block.words[linkWord.withdrawals] = block.words[linkWord.withdrawals]! - 1;
  }

  #note(region: number, key: number, state: number): void {
    const { block, tables } = this.#tools;
    const count = tables.words[tableWord.remotesMade]!;
    for (let place = 0; place < count; place++) {
      if (tables.remoteState[place] === remoteStates.free || tables.remoteState[place] === remoteStates.withdrawn)
        continue;
      const isIts =
        tables.remoteLink[place] === block.words[linkWord.number] &&
        tables.remoteRegion[place] === region &&
        tables.remoteKey[place] === key;
      if (isIts) tables.remoteState[place] = state;
    }
  }
}

function has(bits: Int32Array, region: number): boolean {
  return (bits[region >>> 5]! & (1 << (region & 31))) !== 0;
}

function put(bits: Int32Array, region: number, isSet: boolean): void {
  const bit = 1 << (region & 31);
  bits[region >>> 5] = isSet ? bits[region >>> 5]! | bit : bits[region >>> 5]! & ~bit;
}
