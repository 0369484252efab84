// What the expert-parallel bench takes of each rank's address space, known before anything is made.
import { formatBytes } from '../../../core/byte-size.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { bufferSize, EPConfig, type EpBufferConfig, type OutputSize, outputSize } from '../../../ep/index.ts';
import { combineRowBytes, dispatchRowBytes, type EpWorkload } from './ep-workload.ts';

/** One region for received and combined rows: half the memory, and zero-copy combine reads what dispatch wrote. */
export function benchBufferConfig({ tokens, hidden, topk, experts }: EpWorkload): EpBufferConfig {
  return { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk, combineRows: 'shared' };
}

/**
 * Fails with WL_MEMORY when the windows, tensors and, across hosts, the network side of this workload cannot fit
 * `addressSpaceBytes`. They may need more than what is counted here, which is the case of evenly loaded ranks.
 */
export function requireAddressSpace(
  workload: EpWorkload,
  withLayer: boolean,
  addressSpaceBytes: number,
  ranksOfHosts: readonly number[] = [workload.ranks],
): void {
  const needs = countBytes(workload, withLayer, ranksOfHosts);
  if (needs.total <= addressSpaceBytes) return;
  const layer = withLayer ? `, windows of EPAll2AllLayer ${formatBytes(needs.layer)}` : '';
  const network = needs.network === 0 ? '' : `, their network side ${formatBytes(needs.network)}`;
  const without =
    withLayer && countBytes(workload, false, ranksOfHosts).total <= addressSpaceBytes ? ', or --no-layer' : '';
  throw new WeftlineError(
    'WL_MEMORY',
    `This bench needs at least ${formatBytes(needs.total)} of each rank's address space, which is ${formatBytes(addressSpaceBytes)}: windows of EpBuffer ${formatBytes(needs.buffer)}${layer}${network}, tensors ${formatBytes(needs.tensors)}. Use fewer tokens or ranks${without}`,
    { details: { ...needs, addressSpaceBytes } },
  );
}

function countBytes(
  workload: EpWorkload,
  withLayer: boolean,
  ranksOfHosts: readonly number[],
): Record<'total' | 'buffer' | 'layer' | 'network' | 'tensors', number> {
  const ofBuffer = bufferSize(benchBufferConfig(workload), workload.ranks, ranksOfHosts);
  const ofLayer = withLayer ? layerSize(workload, ranksOfHosts) : undefined;
  const network = (ofBuffer.network?.bytes ?? 0) + (ofLayer?.network?.bytes ?? 0);
  const buffer = ofBuffer.addressSpaceBytes - (ofBuffer.network?.bytes ?? 0);
  const layer = ofLayer === undefined ? 0 : ofLayer.addressSpaceBytes - (ofLayer.network?.bytes ?? 0);
  const tensors = tensorBytes(workload, withLayer);
  return { total: buffer + layer + network + tensors, buffer, layer, network, tensors };
}

function layerSize({ ranks, tokens, hidden, topk, experts }: EpWorkload, ranksOfHosts: readonly number[]): OutputSize {
  const shape = { maxTokensPerRank: tokens, hidden, maxTopk: topk, numExperts: experts };
  const config = new EPConfig({ ...shape, rank: 0, worldSize: ranks, localWorldSize: ranksOfHosts[0]! });
  return outputSize(config, tokens * topk, ranksOfHosts);
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
