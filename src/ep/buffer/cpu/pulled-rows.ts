// The sum of combine over rows that lie in other ranks' tensors: read from process to process, a block of tokens at a time.
//
// The rows that a rank holds of this rank's tokens follow one another in its tensor, in token order, so a block of tokens is
// one read per rank. What was read stays in the cache until it has been summed; a copy through the window does not.
import { elementFormats } from '../../../abi/element-formats.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { PeerMemory } from '../../../group/peer-memory.ts';
import type { CheckedCombine } from '../combine-arguments.ts';
import { type EpTables, pulledTokens } from '../ep-tables.ts';
import type { EpScope } from '../scope.ts';

/** From so many bytes on a tensor is read where it lies; less is quicker copied than read by system calls. */
export const MIN_PULLED_BYTES: number = 1 << 19;

export class PulledRows {
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
        // Where row 0 would be; the kernel's addresses wrap as this one does.
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
