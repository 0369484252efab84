// The kernels of a MoE block's experts.
import { fp8RowsArguments } from '../../../abi/element-formats.ts';
import {
  GROUPED_TILE_COLUMNS,
  GROUPED_TILE_ROWS,
  groupedProductArguments,
  moeGatherRowsArguments,
  moeListChoicesArguments,
  moeStoreWordsArguments,
  moeSumRowsArguments,
  moeSwigluArguments,
} from '../../../abi/moe.ts';
import { defineKernelFile } from '../kernel-file.ts';

// The kernels of kernels/cuda/fp8-rows.cu.

export const fp8RowsKernels = defineKernelFile({
  file: 'fp8-rows.cu',
  constants: {},
  kernels: { quantizeRows: fp8RowsArguments, dequantizeRows: fp8RowsArguments },
  hot: true,
});

export const moeExpertsKernels = defineKernelFile({
  file: 'moe-experts.cu',
  constants: {},
  kernels: {
    moeStoreWords: moeStoreWordsArguments,
    moeListChoices: moeListChoicesArguments,
    moeGatherRows: moeGatherRowsArguments,
    moeSwiglu: moeSwigluArguments,
    moeSumRows: moeSumRowsArguments,
  },
  hot: true,
});

export const groupedProductKernels = defineKernelFile({
  file: 'grouped-product.cu',
  constants: {},
  kernels: { groupedProduct: groupedProductArguments },
  hot: true,
});

export const GROUPED_THREADS = 256;
/** Three stages of a tile of x and one of w, each 64 columns of bf16 deep. */
export const GROUPED_SHARED_BYTES: number = 3 * (GROUPED_TILE_ROWS + GROUPED_TILE_COLUMNS) * 64 * 2;
