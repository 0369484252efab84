// Parts of memory as endpoints are given them, cut so that each piece here has its piece there.
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import { invalidArgument } from '../../core/errors.ts';
import { checkPart, DescriptorList } from '../descriptors.ts';
import type { Registration } from '../registration.ts';

/** Part of registered memory of this side; all of it by default. */
export interface EndpointPart {
  readonly region: Registration;
  readonly offset?: number;
  readonly bytes?: number;
}

const localPartNames: OptionNames<EndpointPart> = { region: true, offset: true, bytes: true };

/** One part, or several that count as one message (the vectored calls). */
export type EndpointParts = EndpointPart | readonly EndpointPart[];

export function listOf(parts: EndpointParts): DescriptorList {
  if (typeof parts !== 'object' || parts === null) throw invalidArgument('parts', parts, 'a part, or a list of them');
  const list = 'region' in parts ? [parts] : parts;
  const kind = list[0]?.region?.kind;
  if (kind === undefined) throw invalidArgument('parts', parts, 'at least one');
  const addresses = new Float64Array(list.length);
  const lengths = new Float64Array(list.length);
  let at = 0;
  for (const part of list) {
    checkOptions(part, localPartNames, 'part');
    const { region, offset = 0, bytes = region.length - offset } = part;
    if (region.kind !== kind) throw invalidArgument('parts', region.kind, `ranges of ${kind} memory`);
    checkPart(region, offset, bytes);
    addresses[at] = region.address + offset;
    lengths[at] = bytes;
    at++;
  }
  return new DescriptorList(kind, addresses, lengths);
}

/** Cuts both lists at each other's borders; what `remote` has more than `local` is left out. */
export function cutAlike(
  local: DescriptorList,
  remote: DescriptorList,
): { readonly local: DescriptorList; readonly remote: DescriptorList } {
  if (haveSameCuts(local, remote)) {
    const count = local.length;
    return { local, remote: new DescriptorList(remote.kind, remote.addresses.subarray(0, count), local.lengths) };
  }
  // Each cut but the last ends an entry of one side at least.
  const most = Math.max(0, local.length + remote.length - 1);
  const [from, to, lengths] = [new Float64Array(most), new Float64Array(most), new Float64Array(most)];
  let [here, there, hereAt, thereAt, cuts] = [0, 0, 0, 0, 0];
  while (here < local.length && there < remote.length) {
    const hereLeft = local.lengths[here]! - hereAt;
    const thereLeft = remote.lengths[there]! - thereAt;
    const bytes = Math.min(hereLeft, thereLeft);
    from[cuts] = local.addresses[here]! + hereAt;
    to[cuts] = remote.addresses[there]! + thereAt;
    lengths[cuts] = bytes;
    cuts++;
    [here, hereAt] = bytes === hereLeft ? [here + 1, 0] : [here, hereAt + bytes];
    [there, thereAt] = bytes === thereLeft ? [there + 1, 0] : [there, thereAt + bytes];
  }
  return {
    local: new DescriptorList(local.kind, from.subarray(0, cuts), lengths.subarray(0, cuts)),
    remote: new DescriptorList(remote.kind, to.subarray(0, cuts), lengths.subarray(0, cuts)),
  };
}

/** True if entry i of both sides has the same size, as far as `local` goes; its last one may be the shorter. */
function haveSameCuts(local: DescriptorList, remote: DescriptorList): boolean {
  const last = local.length - 1;
  if (last < 0 || last >= remote.length) return false;
  for (let index = 0; index < last; index++) if (local.lengths[index] !== remote.lengths[index]) return false;
  return local.lengths[last]! <= remote.lengths[last]!;
}
