// Parts of memory as endpoints are given them, cut so that each piece here has its piece there.
import { invalidArgument } from '../../core/errors.ts';
import { DescriptorList } from '../descriptors.ts';
import type { Registration } from '../registration.ts';

/** Part of registered memory of this side; all of it by default. */
export interface LocalPart {
  readonly region: Registration;
  readonly offset?: number;
  readonly bytes?: number;
}

/** One part, or several that count as one message (the vectored calls). */
export type LocalParts = LocalPart | readonly LocalPart[];

export function listOf(parts: LocalParts): DescriptorList {
  const lists = ('region' in parts ? [parts] : parts).map(({ region, offset, bytes }) =>
    DescriptorList.of(region, offset, bytes),
  );
  const [first, ...others] = lists;
  if (first === undefined) throw invalidArgument('parts', parts, 'at least one');
  return others.reduce((list, other) => list.concat(other), first);
}

/** Cuts both lists at each other's borders; what `remote` has more than `local` is left out. */
export function cutAlike(
  local: DescriptorList,
  remote: DescriptorList,
): { readonly local: DescriptorList; readonly remote: DescriptorList } {
  const cuts: { readonly from: number; readonly to: number; readonly bytes: number }[] = [];
  let [here, there, hereAt, thereAt] = [0, 0, 0, 0];
  while (here < local.length && there < remote.length) {
    const hereLeft = (local.lengths[here] as number) - hereAt;
    const thereLeft = (remote.lengths[there] as number) - thereAt;
    const bytes = Math.min(hereLeft, thereLeft);
    cuts.push({
      from: (local.addresses[here] as number) + hereAt,
      to: (remote.addresses[there] as number) + thereAt,
      bytes,
    });
    [here, hereAt] = bytes === hereLeft ? [here + 1, 0] : [here, hereAt + bytes];
    [there, thereAt] = bytes === thereLeft ? [there + 1, 0] : [there, thereAt + bytes];
  }
  const lengths = Float64Array.from(cuts, ({ bytes }) => bytes);
  return {
    local: new DescriptorList(
      local.kind,
      Float64Array.from(cuts, ({ from }) => from),
      lengths,
    ),
    remote: new DescriptorList(
      remote.kind,
      Float64Array.from(cuts, ({ to }) => to),
      lengths,
    ),
  };
}
