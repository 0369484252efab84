// Items into packs of one size so that their loads differ little.

/**
 * Returns the place of each item: pack * (items / packs) + position in the pack. Items are taken from the heaviest to the
 * lightest, each into the lightest pack that has room. Of equal items the first is taken first, of equal packs the first
 * takes it. Where each pack has one item, items stay in order. With `kinds`, by item, packs that have the kind already take an
 * item only where no other has room.
 */
export function packEvenly(loads: Float64Array, packs: number, kinds?: Int32Array): Int32Array {
  const items = loads.length;
  const size = items / packs;
  if (size === 1) return Int32Array.from(loads, (_, item) => item);
  const order = Array.from(loads, (_, item) => item).toSorted((one, other) => loads[other]! - loads[one]!);
  const sums = new Float64Array(packs);
  const filled = new Int32Array(packs);
  const places = new Int32Array(items);
  const has = Array.from({ length: packs }, () => new Set<number>());
  for (const item of order) {
    let lightest = -1;
    let isOther = false;
    for (let pack = 0; pack < packs; pack++) {
      if (filled[pack] === size) continue;
      const isLacking = kinds !== undefined && !has[pack]!.has(kinds[item]!);
      if (isOther && !isLacking) continue;
      if (lightest === -1 || isLacking !== isOther || sums[pack]! < sums[lightest]!) lightest = pack;
      isOther = isLacking;
    }
    if (kinds !== undefined) has[lightest]!.add(kinds[item]!);
    places[item] = lightest * size + filled[lightest]!;
    filled[lightest] = filled[lightest]! + 1;
    sums[lightest] = sums[lightest]! + loads[item]!;
  }
  return places;
}
