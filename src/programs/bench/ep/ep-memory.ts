// What the expert-parallel bench takes of each rank's address space, known before anything is made.
import { formatBytes } from '../../../core/byte-size.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { bufferSize, EPConfig, type EpBufferConfig, outputSize } from '../../../ep/index.ts';
import { windowFootprint } from '../../../windows/symmetric-window.ts';
import { combineRowBytes, dispatchRowBytes, type EpWorkload } from './ep-workload.ts';

/** One region for received and combined rows: half the memory, and zero-copy combine reads what dispatch wrote. */
export function benchBufferConfig({ tokens, hidden, topk, experts }: EpWorkload): EpBufferConfig {
  return { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk, combineRows: 'shared' };
}

/**
 * Fails with WL_MEMORY when the windows and tensors of this workload cannot fit `addressSpaceBytes`. A rank maps the windows of
 * `ranksOfHost` ranks. They may need more
 * than what is counted here, which is the case of evenly loaded ranks.
 */
export function requireAddressSpace(
  workload: EpWorkload,
  withLayer: boolean,
  addressSpaceBytes: number,
  ranksOfHost: number = workload.ranks,
): void {
  const needs = countBytes(workload, withLayer, ranksOfHost);
  if (needs.total <= addressSpaceBytes) return;
  const layer = withLayer ? `, windows of EPAll2AllLayer ${formatBytes(needs.layer)}` : '';
  const without =
    withLayer && countBytes(workload, false, ranksOfHost).total <= addressSpaceBytes ? ', or --no-layer' : '';
  throw new WeftlineError(
    'WL_MEMORY',
    `This bench needs at least ${formatBytes(needs.total)} of each rank's address space, which is ${formatBytes(addressSpaceBytes)}: windows of EpBuffer ${formatBytes(needs.buffer)}${layer}, tensors ${formatBytes(needs.tensors)}. Use fewer tokens or ranks${without}`,
    { details: { ...needs, addressSpaceBytes } },
  );
}

/** The network side, which ranks of one host do without, is not counted. */
function countBytes(
  workload: EpWorkload,
  withLayer: boolean,
  ranksOfHost: number,
): Record<'total' | 'buffer' | 'layer' | 'tensors', number> {
  const { bytes } = bufferSize(benchBufferConfig(workload), workload.ranks);
  const buffer = windowFootprint(bytes, ranksOfHost);
  const layer = withLayer ? windowFootprint(layerWindowBytes(workload), ranksOfHost) : 0;
  const tensors = tensorBytes(workload, withLayer);
  return { total: buffer + layer + tensors, buffer, layer, tensors };
}

/** Of one rank. */
function layerWindowBytes({ ranks, tokens, hidden, topk, experts }: EpWorkload): number {
  const shape = { maxTokens: tokens, hidden, topk, numExperts: experts };
  const config = new EPConfig({ ...shape, rank: 0, worldSize: ranks, localWorldSize: ranks });
  return outputSize(config, tokens * topk).bytes;
}

function tensorBytes(workload: EpWorkload, withLayer: boolean): number {
  const { ranks, tokens, topk, experts, dtype } = workload;
  const choices = tokens * topk * 8;
  const fp8Input = dtype === 'fp8' ? tokens * dispatchRowBytes(workload) : 0;
  // At some rank at least as many rows arrive as one rank sends: each token goes to the ranks that its experts need.
  const received = tokens * Math.ceil(topk / (experts / ranks));
  // The bf16 input, what combine returns (of the layer too), and the experts' output.
  const rows = tokens * (withLayer ? 3 : 2) + received;
  return choices + fp8Input + rows * combineRowBytes(workload);
}
