// When memory that UCX was given may be freed: one rule for transfers, channels and regions.
import { linkWord } from '../../../abi/ucx-words.ts';
import { failures } from './failure.ts';
import { type LinkBlock, SENDS } from './link-block.ts';

/*
 * UCX reads and writes memory until it has returned the request that names it. An operation that has ended, failed or was
 * stopped may still have one, and so may a link that has failed. So memory may be freed only when
 *
 * - UCX has returned every request of the link that was made before (`hasReturned`, `LinkHalves.isDrained`), and for memory
 *   that peers reach, every one that counts as a use of the region (`UcxTables.regionUses`), in all workers; or
 * - the worker is closed (`UcxDriver.isOver`): over TCP and shared memory UCX moves nothing when no thread works for it.
 *
 * A request that UCX does not return is never given up while its worker lives: whoever waits for it fails with WL_TIMEOUT.
 *
 * Over RDMA the device works for queue pairs without any thread. So a worker that has failed, or that could not be destroyed,
 * gives up no memory: whoever waits for it fails with WL_TIMEOUT, and everything that it may use is kept until the process
 * ends (`keepForever`). Only once no thread works for it any more do its tables tell what it does not use.
 */

const kept = new Set<object>();

/** What `owner` refers to is not collected any more: a device may use it. */
export function keepForever(owner: object): void {
  kept.add(owner);
}

/** Of all sends that the link has posted so far, for `hasReturned`. */
export function sendMark({ words }: LinkBlock): number {
  return words[linkWord.sendsPushed]!;
}

/** Of no send. */
export function emptyMark({ words }: LinkBlock): number {
  return words[linkWord.sendsPopped]!;
}

/** UCX has returned every send of the link up to that mark. Once the link has failed, `isDrained` tells instead. */
export function hasReturned({ words }: LinkBlock, mark: number): boolean {
  const sends = (mark - words[linkWord.sendsPopped]!) | 0;
  // Of a mark that was made long ago the difference may have wrapped.
  return words[linkWord.failure] === failures.none && (sends <= 0 || sends > SENDS);
}
