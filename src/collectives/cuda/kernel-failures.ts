// What the kernels of a Communicator say of a call that cannot go on, as the error that all ranks get alike.
import { COLLECTIVE_BYTES_BITS, COLLECTIVE_COUNT_BITS, collectiveFailures } from '../../abi/collectives.ts';
import { trapReasons } from '../../abi/trap-record.ts';
import { dtypes } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { ExpiredWait } from '../../device/cuda/trap-box.ts';
import {
  type CollectiveCall,
  describeRecord,
  dtypeNumber,
  dtypeOf,
  operationWord,
  type PairMessage,
} from '../collective-call.ts';

/** Details of a wait that expired. */
const waits = { collective: 0, send: 1, receive: 2 } as const;

/** Undefined for a record of another kind. `ranks`: world ranks of the group. */
export function explainCollectiveFailure(trap: ExpiredWait, ranks: readonly number[]): WeftlineError | undefined {
  if (trap.reason !== trapReasons.callFailed && trap.reason !== trapReasons.peerFailed) return undefined;
  const kind = trap.channel & 0xf;
  const reporter = ranks[(trap.channel >>> 4) & 0xf] ?? -1;
  const detail = trap.channel >>> 8;
  const { peer: culprit, expected, seen } = trap;
  switch (kind) {
    case collectiveFailures.otherCall:
      if (expected === seen) {
        return mismatch(
          `Ranks ${reporter} and ${culprit} are in ${describeCallWord(expected)}, but their outputs are at different places; register them in the same order and use the same slices on all ranks`,
          { rank: culprit },
        );
      }
      return mismatch(
        `Rank ${reporter} is in ${describeCallWord(expected)}, but rank ${culprit} is in ${describeCallWord(seen)}; all ranks must make the same calls in the same order`,
        { rank: culprit },
      );
    case collectiveFailures.otherCounts: {
      const [sender, receiver] = (detail & 1) === 1 ? [reporter, culprit] : [culprit, reporter];
      const dtype = detail >>> 1;
      const expects = describeElements(seen, dtype).split(' ')[0];
      return mismatch(
        `allToAllv: rank ${sender} sends ${describeElements(expected, dtype)} to rank ${receiver}, which expects ${expects}`,
        { rank: sender, peer: receiver },
      );
    }
    case collectiveFailures.otherMessage:
      return mismatch(
        `Rank ${reporter} sends ${describeMessageWord(expected)} to rank ${culprit}, whose recv expects ${describeMessageWord(seen)}`,
        { rank: reporter, peer: culprit },
      );
    default:
      return new WeftlineError(
        'WL_TIMEOUT',
        `Rank ${culprit} did not arrive within ${trap.timeoutMs} ms: rank ${reporter} waited for it in ${awaited(detail, expected)}; it may still compute (raise timeoutMs), wait elsewhere, or have left`,
        { details: { rank: culprit, waiting: reporter, timeoutMs: trap.timeoutMs } },
      );
  }
}

function awaited(detail: number, word: number): string {
  if (detail === waits.send) return `a send of ${describeMessageWord(word)}`;
  return detail === waits.receive ? `a recv of ${describeMessageWord(word)}` : describeCallWord(word);
}

function mismatch(message: string, details: Readonly<Record<string, unknown>>): WeftlineError {
  return new WeftlineError('WL_CONFIG_MISMATCH', message, { details });
}

// What ranks must agree on in a call, as a number that kernels compare and errors read.

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
function describeMessageWord(word: number): string {
  return describeElements(word % BYTES, Math.floor(word / BYTES));
}

/** Elements in text, from bytes and the number of a dtype. */
function describeElements(bytes: number, dtype: number): string {
  const name = dtypeOf(dtype) ?? 'u8';
  return `${bytes / dtypes[name].bytes} ${name}`;
}
