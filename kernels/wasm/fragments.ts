// Moves fragments between a bounce buffer and their places, as descriptors say.
import {
  FRAGMENT_BYTES,
  FRAGMENT_DESTINATION_OFFSET,
  FRAGMENT_LENGTH,
  FRAGMENT_SOURCE_OFFSET,
} from 'abi';

/** Moves from the bounce buffer to the destination, or, if `packs` is not 0, the other way. The caller has checked all ranges. */
export function moveFragments(
  descriptors: usize,
  count: i32,
  bounce: usize,
  destination: usize,
  packs: i32,
): void {
  for (let i = 0; i < count; i++, descriptors += FRAGMENT_BYTES) {
    const inBounce = bounce + <usize>load<u32>(descriptors, FRAGMENT_SOURCE_OFFSET);
    const inDestination = destination + <usize>load<u64>(descriptors, FRAGMENT_DESTINATION_OFFSET);
    const bytes = <usize>load<u32>(descriptors, FRAGMENT_LENGTH);
    if (packs != 0) memory.copy(inBounce, inDestination, bytes);
    else memory.copy(inDestination, inBounce, bytes);
  }
}
