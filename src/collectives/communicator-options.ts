// What Communicator.create() takes, with defaults.
import { COLLECTIVE_MAX_BLOCKS } from '../abi/collectives.ts';
import { checkOptions, type OptionNames } from '../core/check-options.ts';
import { type WaitOptions, waitOptionNames } from '../core/deadline.ts';
import { invalidArgument } from '../core/errors.ts';
import type { Device } from '../device/device.ts';
import type { AlgorithmTable } from './algorithm-table.ts';

/** Options of Communicator.create(), the same on all ranks. */
export interface CommunicatorOptions extends WaitOptions {
  /**
   * Bytes of a rank that move at a time: a multiple of 64 from 65536 to 16777216. On CPUs each rank has four pieces of shared
   * memory: 512 KiB by default for up to 8 ranks, then less, so that a host needs at most 16 MiB for them. On GPUs each has
   * three for each rank: 4 MiB by default. On GPUs of several hosts each has four pieces in its own memory and four in pinned
   * memory of each host: 2 MiB by default for up to 32 ranks, then less.
   */
  readonly pieceBytes?: number;
  /**
   * Algorithms of reductions by size, for CPU ranks and for GPUs of several hosts, the same on all ranks: for each collective a list of ranges, of which all
   * but the last have `upToBytes`, of a rank's tensor. By default those of the file that `collectiveTable` names (a setting)
   * for so many ranks and hosts, and else those built in. Results are the same.
   */
  readonly algorithms?: Partial<AlgorithmTable>;
  /** Multiprocessors of a GPU that a call may use, from 1 to 32; 16 by default. */
  readonly numSms?: number;
  /**
   * Larger calls use tensors where they lie, without a copy through the window. Of GPUs: calls of more bytes than this (of the
   * larger of a rank's tensors) with registered tensors; see register(). 2 MiB by default. Of CPU ranks of one host that may
   * read each other's memory (process_vm_readv): an allToAll of more bytes than this (of a rank's tensor) that is in place on
   * no rank; 128 KiB by default. The same on all ranks.
   */
  readonly directBytes?: number;
  /**
   * For GPUs of one host: their copy engines move allGather, and allToAll that is not in place, of more than `directBytes`; multiprocessors do nothing but tell the others that a rank is there. For outputs that are registered
   * and lie at the same place of the same registration on all ranks: ranks that register in the same order and use the same
   * slices. If one rank's does not, the call fails with WL_CONFIG_MISMATCH. False by default.
   */
  readonly copyEngines?: boolean;
}

/** Options with their defaults. */
export interface CheckedCommunicatorOptions extends Readonly<Record<'pieceBytes' | 'numSms' | 'directBytes', number>> {
  readonly copyEngines: boolean;
}

const optionNames: OptionNames<CommunicatorOptions> = {
  ...waitOptionNames,
  pieceBytes: true,
  numSms: true,
  directBytes: true,
  algorithms: true,
  copyEngines: true,
};
const PIECE_ALIGNMENT = 64;
const MIN_PIECE_BYTES = 65_536;
const MAX_PIECE_BYTES = 1 << 24;
const DEFAULT_PIECE_BYTES = 1 << 19;
const DEFAULT_PIECES_OF_HOST = 1 << 22;
const CUDA_PIECE_BYTES = 1 << 22;
const HOSTS_PIECE_BYTES = 1 << 21;
const HOSTS_PIECES_OF_ALL = 1 << 26;
const CUDA_DIRECT_BYTES = 1 << 21;
const CPU_DIRECT_BYTES = 1 << 17;

/** Fails with WL_INVALID_ARGUMENT. */
export function checkCommunicatorOptions(
  options: CommunicatorOptions,
  shape: { readonly ranks: number; readonly hosts: number },
  kind: Device['kind'],
): CheckedCommunicatorOptions {
  checkOptions(options, optionNames, 'options of Communicator.create');
  const {
    pieceBytes = usualPieceBytes(shape, kind),
    numSms = 16,
    directBytes = kind === 'cuda' ? CUDA_DIRECT_BYTES : CPU_DIRECT_BYTES,
    copyEngines = false,
  } = options;
  const isRight = Number.isInteger(pieceBytes) && pieceBytes % PIECE_ALIGNMENT === 0;
  if (!isRight || pieceBytes < MIN_PIECE_BYTES || pieceBytes > MAX_PIECE_BYTES) {
    const expected = `a multiple of ${PIECE_ALIGNMENT} from ${MIN_PIECE_BYTES} to ${MAX_PIECE_BYTES}`;
    throw invalidArgument('pieceBytes', pieceBytes, expected);
  }
  requireWhole('numSms', numSms, 1, COLLECTIVE_MAX_BLOCKS);
  requireWhole('directBytes', directBytes, 0, Number.MAX_SAFE_INTEGER);
  if (typeof copyEngines !== 'boolean') throw invalidArgument('copyEngines', copyEngines, 'true or false');
  return { pieceBytes, numSms, directBytes, copyEngines };
}

function usualPieceBytes(
  { ranks, hosts }: { readonly ranks: number; readonly hosts: number },
  kind: Device['kind'],
): number {
  if (kind === 'cuda' && hosts === 1) return CUDA_PIECE_BYTES;
  const [most, ofAll] =
    kind === 'cuda' ? [HOSTS_PIECE_BYTES, HOSTS_PIECES_OF_ALL] : [DEFAULT_PIECE_BYTES, DEFAULT_PIECES_OF_HOST];
  const share = Math.floor(ofAll / ranks / PIECE_ALIGNMENT) * PIECE_ALIGNMENT;
  return Math.max(MIN_PIECE_BYTES, Math.min(most, share));
}

function requireWhole(name: string, value: number, least: number, most: number): void {
  if (Number.isInteger(value) && value >= least && value <= most) return;
  throw invalidArgument(name, value, `a whole number from ${least} to ${most}`);
}
