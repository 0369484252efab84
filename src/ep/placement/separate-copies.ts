// Copies of experts onto ranks: as evenly as they can be packed, and copies of one expert apart, since two on one rank help nobody.
import { packEvenly } from './pack-evenly.ts';

/** Copies to place: which expert each is of, and the load of each. */
export interface Copies {
  readonly items: Int32Array;
  readonly loads: Float64Array;
}

/**
 * The place of each copy, as packEvenly() gives it, but that copies of one expert go to different packs wherever the most loaded pack
 * does not get more than there.
 */
export function packApart(copies: Copies, packs: number): Int32Array {
  const even = new Packing(copies, packEvenly(copies.loads, packs), packs);
  if (even.together() === 0) return even.places();
  const most = even.heaviest();
  even.separate(most);
  if (even.together() === 0) return even.places();
  // Another way to begin, which may lead further.
  const apart = new Packing(copies, packEvenly(copies.loads, packs, copies.items), packs);
  apart.lighten(most);
  if (apart.heaviest() > most) return even.places();
  apart.separate(most);
  return apart.together() < even.together() ? apart.places() : even.places();
}

/** Copies in packs, of which two may change places. */
class Packing {
  readonly #copies: Copies;
  readonly #size: number;
  readonly #packs: number;
  /** By place: the copy there. */
  readonly #copyAt: Int32Array;
  readonly #sums: Float64Array;
  /** By pack: how many copies of each item it has. Plans of some 10,000 copies would take seconds if packs were searched. */
  readonly #counts: readonly Map<number, number>[];

  constructor(copies: Copies, places: Int32Array, packs: number) {
    this.#copies = copies;
    this.#packs = packs;
    this.#size = places.length / packs;
    this.#copyAt = new Int32Array(places.length);
    this.#sums = new Float64Array(packs);
    this.#counts = Array.from({ length: packs }, () => new Map<number, number>());
    for (const [copy, place] of places.entries()) {
      this.#copyAt[place] = copy;
      this.#count(place, 1);
    }
    for (let pack = 0; pack < packs; pack++) this.#addUp(pack);
  }

  /** By copy. */
  places(): Int32Array {
    const places = new Int32Array(this.#copyAt.length);
    for (const [place, copy] of this.#copyAt.entries()) places[copy] = place;
    return places;
  }

  heaviest(): number {
    return this.#sums.reduce((one, other) => Math.max(one, other));
  }

  /** Copies that have another one of their expert before them in their pack. */
  together(): number {
    let count = 0;
    for (let place = 0; place < this.#copyAt.length; place++) if (this.#isRepeated(place)) count += 1;
    return count;
  }

  /** Brings copies that are together to other packs, in exchange for others, as long as no pack gets more than `most`. */
  separate(most: number): void {
    for (let isChanged = true; isChanged;) {
      isChanged = false;
      for (let place = 0; place < this.#copyAt.length; place++) {
        if (!this.#isRepeated(place)) continue;
        const other = this.#partnerOf(place, most);
        if (other < 0) continue;
        this.#swap(place, other);
        isChanged = true;
      }
    }
  }

  /** Exchanges copies of the heaviest pack, without bringing any together, until none has more than `most` or it goes no further. */
  lighten(most: number): void {
    // Sums are rounded: what seems to become lighter may be as heavy afterwards.
    for (let turns = this.#copyAt.length; turns > 0; turns--) {
      const heaviest = this.heaviest();
      if (heaviest <= most) return;
      const pack = this.#sums.indexOf(heaviest);
      let [from, to, least] = [-1, -1, heaviest];
      for (let place = pack * this.#size; place < (pack + 1) * this.#size; place++) {
        const other = this.#partnerOf(place, least);
        if (other < 0) continue;
        const after = this.#after(place, other);
        if (after >= least) continue;
        [from, to, least] = [place, other, after];
      }
      if (from < 0) return;
      this.#swap(from, to);
    }
  }

  /** The place elsewhere with which this one can be exchanged best, none being together then; -1 if a pack would get more than `most`. */
  #partnerOf(place: number, most: number): number {
    const [item, pack] = [this.#itemAt(place), this.#packOf(place)];
    let best = -1;
    let least = most;
    for (let other = 0; other < this.#packs; other++) {
      if (other === pack || this.#has(other, item)) continue;
      for (let at = other * this.#size; at < (other + 1) * this.#size; at++) {
        if (this.#has(pack, this.#itemAt(at))) continue;
        const after = this.#after(place, at);
        if (after > least || (after === least && best >= 0)) continue;
        [best, least] = [at, after];
      }
    }
    return best;
  }

  /** What the heavier of both packs would have. */
  #after(one: number, other: number): number {
    const difference = this.#loadAt(other) - this.#loadAt(one);
    return Math.max(this.#sums[this.#packOf(one)]! + difference, this.#sums[this.#packOf(other)]! - difference);
  }

  #swap(one: number, other: number): void {
    for (const place of [one, other]) this.#count(place, -1);
    const copy = this.#copyAt[one]!;
    this.#copyAt[one] = this.#copyAt[other]!;
    this.#copyAt[other] = copy;
    for (const place of [one, other]) this.#count(place, 1);
    this.#addUp(this.#packOf(one));
    this.#addUp(this.#packOf(other));
  }

  #addUp(pack: number): void {
    let sum = 0;
    for (let place = pack * this.#size; place < (pack + 1) * this.#size; place++) sum += this.#loadAt(place);
    this.#sums[pack] = sum;
  }

  #isRepeated(place: number): boolean {
    const item = this.#itemAt(place);
    if (this.#counts[this.#packOf(place)]!.get(item) === 1) return false;
    for (let before = this.#packOf(place) * this.#size; before < place; before++) {
      if (this.#itemAt(before) === item) return true;
    }
    return false;
  }

  #has(pack: number, item: number): boolean {
    return (this.#counts[pack]!.get(item) ?? 0) > 0;
  }

  #count(place: number, more: number): void {
    const counts = this.#counts[this.#packOf(place)]!;
    const item = this.#itemAt(place);
    counts.set(item, (counts.get(item) ?? 0) + more);
  }

  #packOf(place: number): number {
    return Math.floor(place / this.#size);
  }

  #itemAt(place: number): number {
    return this.#copies.items[this.#copyAt[place]!]!;
  }

  #loadAt(place: number): number {
    return this.#copies.loads[this.#copyAt[place]!]!;
  }
}
