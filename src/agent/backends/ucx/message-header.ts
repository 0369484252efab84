// The words of a message's header, read and written in place. Hot path: no allocation.
import { ucxMessage } from '../../../abi/ucx-message.ts';

/** Of each field of the header, in 32-bit words. */
export const headerWord = Object.fromEntries(
  Object.entries(ucxMessage.offset).map(([name, offset]) => [name, offset / 4]),
) as typeof ucxMessage.offset;

export const HEADER_WORDS: number = ucxMessage.size / 4;

const TWO_32 = 2 ** 32;

export function putWide(words: Uint32Array, word: number, value: number): void {
  words[word] = value;
  words[word + 1] = value / TWO_32;
}

export function wideAt(words: Uint32Array, word: number): number {
  return (words[word] as number) + (words[word + 1] as number) * TWO_32;
}
