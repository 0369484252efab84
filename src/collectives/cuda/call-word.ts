// What ranks must agree on in a call, as a number that kernels compare and errors read.
import { COLLECTIVE_BYTES_BITS, COLLECTIVE_COUNT_BITS } from '../../abi/collectives.ts';
import { dtypes } from '../../core/dtype.ts';
import { type CollectiveCall, describeRecord, dtypeNumber, dtypeOf, operationWord } from '../collective-call.ts';
import type { PairMessage } from '../collective-engine.ts';

/** Above the count: kind, dtype and reduction with 4 bits each, then the root with 3, and whether copy engines move the call. */
const COUNTS = 2 ** COLLECTIVE_COUNT_BITS;
const BYTES = 2 ** COLLECTIVE_BYTES_BITS;
const WORD = 2 ** 32;
const ROOT = 12;
const COPY_ENGINES = 1 << 15;

/** Hot path. An integer that a double holds. */
export function callWord(call: CollectiveCall, copyEngines = false): number {
  const operation = operationWord(call);
  const packed =
    (operation & 0xf) |
    ((operation >>> 4) & 0xf0) |
    ((operation >>> 8) & 0xf00) |
    (call.root << ROOT) |
    (copyEngines ? COPY_ENGINES : 0);
  return packed * COUNTS + call.count;
}

/** "allReduce (sum) of 1024 f32" */
export function describeCallWord(word: number): string {
  const packed = Math.floor(word / COUNTS);
  const operation = (packed & 0xf) | ((packed & 0xf0) << 4) | ((packed & 0xf00) << 8);
  const call = describeRecord(operation, (packed >>> ROOT) & 7, word % COUNTS);
  return (packed & COPY_ENGINES) === 0 ? call : `${call} by copy engines`;
}

/** Hot path. Of a call by copy engines: ranks must also agree on where their outputs lie. */
export function signatureOfPlace(
  word: number,
  { id, within }: { readonly id: number; readonly within: number },
): number {
  return (signatureOf(word) ^ Math.imul(signatureOf(within), id)) >>> 0;
}

/** Hot path. 32 bits that differ between words, but for one chance in 2^32. */
export function signatureOf(word: number): number {
  const low = word % WORD;
  const high = (word - low) / WORD;
  return (Math.imul(low, 0x9e37_79b1) ^ Math.imul(high + 1, 0x85eb_ca6b)) >>> 0;
}

export function messageWord({ bytes, dtype }: PairMessage): number {
  return dtypeNumber(dtype) * BYTES + bytes;
}

/** "5 f32" */
export function describeMessageWord(word: number): string {
  return describeElements(word % BYTES, Math.floor(word / BYTES));
}

/** Of bytes and the number of a dtype. */
export function describeElements(bytes: number, dtype: number): string {
  const name = dtypeOf(dtype) ?? 'u8';
  return `${bytes / dtypes[name].bytes} ${name}`;
}
