// The rows of an EpBuffer's calls on a CPU rank: to the windows of their receivers, and out of the windows into sums.
import { elementFormats } from '../../../abi/element-formats.ts';
import { dtypes } from '../../../core/dtype.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { TensorSet } from '../../../device/device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { EpBufferConfig, EpBufferSize, EpRegion } from '../buffer-size.ts';
import { type CheckedCombine, type DispatchPlanInput, type EpScope, MAX_BIASES } from '../call-arguments.ts';
import type { DispatchHandle } from '../dispatch-handle.ts';
import { emptyLayout, type LayoutShape } from '../dispatch-layout.ts';
import { makeAddressTables } from '../../../group/address-table.ts';
import type { PeerMemory } from '../../../group/peer-memory.ts';
import { overlaps } from '../../../group/tensor-check.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';

// The small tables that an EpBuffer's kernels work with, all allocated before the ranks agree that they can begin.

export type EpTables = ReturnType<typeof makeEpTables>;

/** Fails with WL_MEMORY. */
export function makeEpTables(
  device: CpuDevice,
  config: EpBufferConfig,
  { ranks, size }: { readonly ranks: number; readonly size: EpBufferSize },
) {
  const experts = config.numExperts;
  const readable = size.network === undefined && ranks > 1 ? ranks : 0;
  const shape: LayoutShape = { ranks, experts, dropped: -1, name: 'topkIdx' };
  return TensorSet.together(device, (tensors) => ({
    shape,
    /** The layout of the present dispatch, for callers who pass none. */
    layout: emptyLayout(tensors, config.maxTokensPerRank, shape),
    /** Addresses of the regions at all ranks. */
    bases: makeAddressTables(tensors, Object.keys(size.regions) as EpRegion[], ranks),
    /** The next row of this source at each rank. */
    nextRow: tensors.empty('i32', [ranks]),
    /** Addresses of the exchange's records, by parity and rank. */
    records: tensors.empty('i32', [2, ranks]),
    /** Rows that ranks 0..s together send to rank d, [s, d], of the present dispatch. */
    rankPrefix: tensors.empty('i32', [ranks, ranks]),
    /** Choices of each expert of this rank. */
    perLocalExpert: tensors.empty('i32', [experts / ranks]),
    /** Rows of combine that are read out of other ranks' tensors, a block of tokens at a time; none on several hosts. */
    pulled: tensors.empty('u8', [readable * pulledTokens(config, ranks) * config.hidden * 2]),
    /** Addresses where combine then finds row 0 of each rank. */
    pulledBases: tensors.empty('i32', [ranks]),
    /** Addresses of the rows of one sum, biases included. */
    sources: tensors.empty('i32', [ranks + MAX_BIASES]),
  }));
}

/** What the processor's second-level cache takes beside other things. */
const PULLED_BYTES = 1 << 20;

/** Tokens whose rows are pulled at a time. */
function pulledTokens({ hidden, maxTokensPerRank }: EpBufferConfig, ranks: number): number {
  const fitting = Math.floor(PULLED_BYTES / (ranks * hidden * 2));
  return Math.max(1, Math.min(fitting, maxTokensPerRank));
}

/** What combine makes. */
export interface CombineSums {
  readonly rows: Tensor<'bf16'>;
  readonly weights: Tensor<'f32'> | undefined;
}

interface BufferRowsParts {
  readonly window: SymmetricWindow;
  readonly tables: EpTables;
  /** Only where ranks can read each other's tensors. */
  readonly memory: PeerMemory | undefined;
}

export class BufferRows {
  readonly #scope: EpScope<CpuDevice>;
  readonly #tables: EpTables;
  /** Addresses where peers read what combine takes of this rank. */
  readonly #staged: { readonly rows: number; readonly weights: number };
  /** Addresses where combine reads the rows of each rank; this rank's own may be read where they lie. */
  readonly #sources: Int32Array;

  /** Only where ranks can read each other's tensors. */
  readonly #pulled: PulledRows | undefined;

  constructor(scope: EpScope<CpuDevice>, { window, tables, memory }: BufferRowsParts) {
    this.#scope = scope;
    this.#tables = tables;
    const { combineRows, combineWeights } = scope.size.regions;
    this.#staged = { rows: window.address + combineRows.offset, weights: window.address + combineWeights.offset };
    this.#sources = tables.bases.combineRows.view();
    this.#pulled = memory && new PulledRows(scope, memory, tables);
  }

  /** Sends rows of these tokens to the ranks of this host. */
  send({ data, scales }: DispatchPlanInput, { rowTable }: DispatchHandle, first: number, count: number): void {
    const { scatterRows } = this.#scope.device.kernels;
    const { bases } = this.#tables;
    const n = this.#scope.group.size;
    const rowBytes = this.#scope.config.hidden * dtypes[data.dtype].bytes;
    const table = rowTable.address + first * n * 4;
    scatterRows(data.address + first * rowBytes, rowBytes, count, n, table, 0, bases.rows.address);
    if (scales) {
      const scaleBytes = scales.shape[1]! * 4;
      scatterRows(scales.address + first * scaleBytes, scaleBytes, count, n, table, 0, bases.scales.address);
    }
  }

  /** Token index, expert ids and weights of every row, straight to the receivers. */
  sendChoices({ topkIdx, topkWeights, numTokens }: DispatchPlanInput, { rowTable }: DispatchHandle): void {
    const { kernels } = this.#scope.device;
    const { bases } = this.#tables;
    const n = this.#scope.group.size;
    const table = rowTable.address;
    kernels.scatterTokenIndex(numTokens, n, table, 0, bases.sourceToken.address);
    if (!topkIdx) return;
    const k = topkIdx.shape[1]!;
    const indexBytes = dtypes[topkIdx.dtype].bytes;
    const perRank = this.#scope.config.numExperts / n;
    kernels.scatterTopkIndex(topkIdx.address, indexBytes, numTokens, k, n, perRank, table, bases.topkIdx.address, 0);
    if (!topkWeights) return;
    const weights = topkWeights.address;
    const target = bases.topkWeights.address;
    kernels.scatterTopkWeight(topkIdx.address, indexBytes, weights, numTokens, k, n, perRank, table, target, 0);
  }

  /**
   * Brings what combine takes to where the peers read it, unless it is there already. `here`: the group is on one host. This
   * rank's own rows, which nobody else reads, then stay where they are, and sum() reads them there. Returns the address of
   * rows that peers are to read where they are, for sum() of all ranks, else 0.
   */
  stage(input: CheckedCombine, sums: CombineSums, here: boolean): number {
    const { x, weights, handle } = input;
    const { rank, size } = this.#scope.group;
    const staged = this.#staged;
    const { copyBytes: copy } = this.#scope.device.kernels;
    const isPlaced = x.address === staged.rows;
    // What is copied must not run over rows that are yet to be copied or read, nor must the sums.
    const readsOwn = here && !overlaps(x, staged.rows, x.bytes) && !overlaps(x, sums.rows.address, sums.rows.bytes);
    this.#sources[rank] = readsOwn ? x.address | 0 : staged.rows | 0;
    const isPulled = readsOwn && this.#pulled !== undefined && x.bytes >= MIN_PULLED_BYTES;
    if (!isPlaced && !isPulled) {
      const own = readsOwn ? ownRows(handle, rank, size) : NO_ROWS;
      const rowBytes = this.#scope.config.hidden * 2;
      const behind = own.end * rowBytes;
      copy(staged.rows, x.address, own.first * rowBytes);
      copy(staged.rows + behind, x.address + behind, x.bytes - behind);
    }
    if (weights !== undefined && weights.address !== staged.weights) {
      copy(staged.weights, weights.address, weights.bytes);
    }
    return isPulled ? x.address : 0;
  }

  /** Sums, behind the barrier, what all ranks of the host have staged. `places`: what the stage() of each rank returned. */
  sum({ rows, weights }: CombineSums, input: CheckedCombine, places: readonly number[]): void {
    const isPulled = places.some((place, rank) => place !== 0 && rank !== this.#scope.group.rank);
    if (isPulled) this.#pulled!.sum(rows, input, places, this.#sources);
    else this.#sumRows(rows, input);
    if (weights) this.#sumWeights(weights, input.handle);
  }

  #sumRows(out: Tensor<'bf16'>, { handle, biases }: CheckedCombine): void {
    this.#scope.device.kernels.gatherSum(
      out.address,
      this.#scope.config.hidden * 2,
      handle.numTokens,
      this.#scope.group.size,
      handle.rowTable.address,
      0,
      this.#tables.bases.combineRows.address,
      0,
      biases[0]?.address ?? 0,
      biases[1]?.address ?? 0,
      this.#tables.sources.address,
      elementFormats.bf16,
    );
  }

  #sumWeights(out: Tensor<'f32'>, handle: DispatchHandle): void {
    this.#scope.device.kernels.gatherTopkWeight(
      out.address,
      handle.numTokens,
      out.shape[1]!,
      this.#scope.group.size,
      handle.rowTable.address,
      this.#tables.bases.combineWeights.address,
    );
  }
}

const NO_ROWS = { first: 0, end: 0 };

/** Rows that this rank received from itself. */
function ownRows({ rankPrefixMatrix }: DispatchHandle, rank: number, ranks: number): typeof NO_ROWS {
  const sums = rankPrefixMatrix!;
  return { first: rank === 0 ? 0 : sums[(rank - 1) * ranks + rank]!, end: sums[rank * ranks + rank]! };
}

// The sum of combine over rows that lie in other ranks' tensors: read from process to process, a block of tokens at a time.
//
// The rows that a rank holds of this rank's tokens follow one another in its tensor, in token order, so a block of tokens is
// one read per rank. What was read stays in the cache until it has been summed; a copy through the window does not.

/** A tensor of so many bytes is read where it lies; less is quicker copied than read by system calls. */
const MIN_PULLED_BYTES: number = 1 << 19;

class PulledRows {
  readonly #scope: EpScope<CpuDevice>;
  readonly #memory: PeerMemory;
  readonly #tables: EpTables;
  readonly #blockTokens: number;
  readonly #bases: Int32Array;

  constructor(scope: EpScope<CpuDevice>, memory: PeerMemory, tables: EpTables) {
    this.#scope = scope;
    this.#memory = memory;
    this.#tables = tables;
    this.#blockTokens = pulledTokens(scope.config, scope.group.size);
    this.#bases = tables.pulledBases.view();
  }

  /**
   * Behind the barrier. `places`: by rank, the address of its tensor in its own memory, or 0 if its rows are where `sources`
   * says, which are addresses here. Fails with WL_PEER_LOST.
   */
  sum(out: Tensor<'bf16'>, input: CheckedCombine, places: readonly number[], sources: Int32Array): void {
    const { handle, biases } = input;
    const { device, group, config } = this.#scope;
    const { pulled, pulledBases, sources: scratch } = this.#tables;
    const { size: n, rank: me } = group;
    const rowBytes = config.hidden * 2;
    const table = handle.rowTable.view();
    const most = this.#blockTokens;
    for (let first = 0; first < handle.numTokens; first += most) {
      const tokens = Math.min(most, handle.numTokens - first);
      for (let rank = 0; rank < n; rank++) {
        const place = places[rank]!;
        if (place === 0 || rank === me) {
          this.#bases[rank] = sources[rank]!;
          continue;
        }
        const [row, end] = rowsIn(table, { first, tokens, rank, ranks: n });
        const to = pulled.address + rank * most * rowBytes;
        if (end > row) this.#memory.read(rank, place + row * rowBytes, to, (end - row) * rowBytes);
        // This is where row 0 would be; the kernel's addresses wrap as it does.
        this.#bases[rank] = (to - row * rowBytes) | 0;
      }
      const at = first * rowBytes;
      device.kernels.gatherSum(
        out.address + at,
        rowBytes,
        tokens,
        n,
        handle.rowTable.address + first * n * 4,
        0,
        pulledBases.address,
        0,
        biases[0] === undefined ? 0 : biases[0].address + at,
        biases[1] === undefined ? 0 : biases[1].address + at,
        scratch.address,
        elementFormats.bf16,
      );
    }
  }
}

/** The rows that a rank holds of some consecutive tokens: the first, and the one behind the last. */
function rowsIn(
  table: Int32Array,
  of: { readonly first: number; readonly tokens: number; readonly rank: number; readonly ranks: number },
): readonly [number, number] {
  let [row, end] = [0, 0];
  for (let token = of.first; token < of.first + of.tokens; token++) {
    const at = table[token * of.ranks + of.rank]!;
    if (at < 0) continue;
    if (end === 0) row = at;
    end = at + 1;
  }
  return [row, end];
}
