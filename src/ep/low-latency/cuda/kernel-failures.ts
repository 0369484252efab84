// What a low-latency kernel says of a call that cannot go on, here or at a peer, as an error.
import { lowLatencyFailures } from '../../../abi/low-latency.ts';
import { trapReasons } from '../../../abi/trap-record.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { ExpiredWait } from '../../../device/cuda/trap-box.ts';
import { columnsOf, describeWait } from '../call-words.ts';
import type { LowLatencyConfig } from '../low-latency-size.ts';

const WORD = 2 ** 32;

/** Undefined for a record of another kind. */
export function explainFailure(trap: ExpiredWait, config: Required<LowLatencyConfig>): WeftlineError | undefined {
  const isHere = trap.reason === trapReasons.callFailed;
  if (!isHere && trap.reason !== trapReasons.peerFailed) return undefined;
  const kind = trap.expected % 256;
  const number = Math.floor(trap.expected / 256);
  const detail = trap.seen % WORD;
  const extent = Math.floor(trap.seen / WORD);
  const rank = trap.peer;
  if (kind === lowLatencyFailures.overflow) {
    const { maxTokensPerExpert: capacity } = config;
    const message = `Expert ${detail} got ${extent} rows in dispatch ${number}, more than its ${capacity} (maxTokensPerExpert); raise that, or drop rows with overflow: 'drop'`;
    const details = { expert: detail, rows: extent, dispatch: number, maxTokensPerExpert: capacity };
    return isHere ? new WeftlineError('WL_CAPACITY', message, { details }) : failedThere(rank, message, details);
  }
  if (kind === lowLatencyFailures.badChoice) {
    const columns = Math.max(1, columnsOf(trap.channel));
    const place = `topkIdx[${Math.floor(detail / columns)}, ${detail % columns}]`;
    const message = `Invalid ${place} of rank ${rank} in dispatch ${number}: expected an expert from 0 to ${config.numExperts - 1}, or -1 for none`;
    const details = { argument: place, rank, dispatch: number };
    return isHere
      ? new WeftlineError('WL_INVALID_ARGUMENT', message, { details })
      : failedThere(rank, message, details);
  }
  return failedThere(rank, `it gave up while this rank was in ${describeWait(trap.channel)}`, { rank });
}

function failedThere(rank: number, message: string, details: Readonly<Record<string, unknown>>): WeftlineError {
  return new WeftlineError('WL_PEER_FAILED', `Rank ${rank} failed: ${message}`, { details, rank });
}
