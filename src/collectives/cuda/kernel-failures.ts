// What the kernels of a Communicator say of a call that cannot go on, as the error that all ranks get alike.
import { collectiveFailures } from '../../abi/collectives.ts';
import { trapReasons } from '../../abi/trap-record.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { ExpiredWait } from '../../device/cuda/trap-box.ts';
import { describeCallWord, describeElements, describeMessageWord } from './call-word.ts';

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
