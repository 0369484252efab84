// What a dispatch sends, as arguments of its kernel.
import { dtypes } from '../../../core/dtype.ts';
import type { DispatchLaunch } from './cuda-launches.ts';
import type { DispatchPlanInput } from '../dispatch-arguments.ts';

type DispatchBlock = DispatchLaunch['plan']['arguments'];

export function setRows(set: DispatchBlock, { data, scales, numTokens }: DispatchPlanInput): void {
  set.set('x', data.address);
  set.set('scales', scales?.address ?? 0);
  set.set('scaleBytes', scales ? scales.shape[1]! * 4 : 0);
  set.set('tokens', numTokens);
}

/** Choices are counted afresh; a layout without them brings its marks and its counts per expert. */
export function setChoices(set: DispatchBlock, { topkIdx, topkWeights, layout }: DispatchPlanInput): void {
  const marks = topkIdx ? undefined : layout;
  set.set('topk', topkIdx?.address ?? 0);
  set.set('topkColumns', topkIdx?.shape[1] ?? 0);
  set.set('indexBytes', topkIdx ? dtypes[topkIdx.dtype].bytes : 0);
  set.set('weights', topkWeights?.address ?? 0);
  set.set('membership', marks?.isTokenInRank.address ?? 0);
  set.set('givenExperts', marks?.numTokensPerExpert.address ?? 0);
}
