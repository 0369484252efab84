// The words of a control message's header, read and written in place. Hot path: no allocation.
import { wordOffsets } from '../../../abi/layout.ts';
import { UCX_CONTROL_BYTES, ucxMessage } from '../../../abi/ucx-message.ts';

/** Of each field of the header, in 32-bit words. */
export const headerWord: typeof ucxMessage.offset = wordOffsets(ucxMessage);

export const HEADER_BYTES: number = ucxMessage.size;
export const CONTROL_WORDS: number = UCX_CONTROL_BYTES / 4;
/** Data and notification up to this size lie behind the header. */
export const INLINE_BYTES: number = UCX_CONTROL_BYTES - HEADER_BYTES;
/** A part goes in messages of this size, so that a read does not wait behind a whole large write. */
export const CHUNK_BYTES: number = 8 * 2 ** 20;

/** What a notification takes of the rings. */
export function ringBytes(message: number): number {
  return (message + 15) & ~7;
}
