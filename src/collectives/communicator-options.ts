// What Communicator.create() takes, with defaults.
import { checkOptions, type OptionNames } from '../core/check-options.ts';
import { type WaitOptions, waitOptionNames } from '../core/deadline.ts';
import { invalidArgument } from '../core/errors.ts';
import type { AlgorithmTable } from './algorithm-table.ts';

/** Options of Communicator.create(). */
export interface CommunicatorOptions extends WaitOptions {
  /**
   * Bytes of a rank that move at a time, the same on all ranks: a multiple of 64 from 65536 to 16777216. Each rank has four
   * pieces of shared memory. 512 KiB by default for up to 8 ranks, then less, so that a host needs at most 16 MiB for them.
   */
  readonly pieceBytes?: number;
  /**
   * Algorithms of reductions by size, the same on all ranks: for each collective a list of ranges, of which all but the last
   * have `upToBytes`, of a rank's tensor. By default those of the file that `collectiveTable` names (a setting) for so many
   * ranks and hosts, and else those built in. Results are the same.
   */
  readonly algorithms?: Partial<AlgorithmTable>;
}

const optionNames: OptionNames<CommunicatorOptions> = { ...waitOptionNames, pieceBytes: true, algorithms: true };
const PIECE_ALIGNMENT = 64;
const MIN_PIECE_BYTES = 65_536;
const MAX_PIECE_BYTES = 1 << 24;
const DEFAULT_PIECE_BYTES = 1 << 19;
const DEFAULT_PIECES_OF_HOST = 1 << 22;

/** Fails with WL_INVALID_ARGUMENT. */
export function pieceBytesOf(options: CommunicatorOptions, ranks: number): number {
  checkOptions(options, optionNames, 'options of Communicator.create');
  const share = Math.floor(DEFAULT_PIECES_OF_HOST / ranks / PIECE_ALIGNMENT) * PIECE_ALIGNMENT;
  const { pieceBytes = Math.max(MIN_PIECE_BYTES, Math.min(DEFAULT_PIECE_BYTES, share)) } = options;
  const isRight = Number.isInteger(pieceBytes) && pieceBytes % PIECE_ALIGNMENT === 0;
  if (isRight && pieceBytes >= MIN_PIECE_BYTES && pieceBytes <= MAX_PIECE_BYTES) return pieceBytes;
  throw invalidArgument(
    'pieceBytes',
    pieceBytes,
    `a multiple of ${PIECE_ALIGNMENT} from ${MIN_PIECE_BYTES} to ${MAX_PIECE_BYTES}`,
  );
}
