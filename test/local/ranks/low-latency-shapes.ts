// Inputs of low-latency calls of a middling size, whose experts hand back what they got: what repeated calls and graphs share.
import type { Tensor } from 'weftline';
import type {
  LowLatencyCombineArguments,
  LowLatencyConfig,
  LowLatencyDispatchArguments,
  LowLatencyDispatchResult,
} from 'weftline/ep';
import type { RankGroup } from 'weftline/world';
import type { EpDevice } from '../support/test-device.ts';

export const lowLatencyModes = ['rank-sums', 'choices', 'rank-major'] as const;
export type LowLatencyMode = (typeof lowLatencyModes)[number];

const [tokens, hidden, topk] = [150, 1288, 6] as const;

export interface LowLatencyShapes {
  config(mode: LowLatencyMode): LowLatencyConfig;
  dispatchArgs(mode: LowLatencyMode): LowLatencyDispatchArguments & { readonly dtype: 'bf16' };
  combineArgs(mode: LowLatencyMode, result: LowLatencyDispatchResult<'bf16'>): LowLatencyCombineArguments;
  /** Other rows, choices and weights in the same tensors. */
  refill(): Promise<void>;
}

export async function makeShapes(group: RankGroup, device: EpDevice, next: () => number): Promise<LowLatencyShapes> {
  const experts = 12 * group.size;
  const x = device.empty('bf16', [tokens, hidden]);
  const topkIdx = device.empty('i32', [tokens, topk]);
  const topkWeights = device.empty('f32', [tokens, topk]);
  // Rows by rank lie in the window, where combine does not take them from.
  const y = device.empty('bf16', [group.size, tokens, hidden]);
  const fill = async (tensor: Tensor<'bf16'>): Promise<void> => {
    await tensor.fromHost(Uint16Array.from({ length: tensor.elements }, () => next() * 0x7f00));
  };
  const refill = async (): Promise<void> => {
    await fill(x);
    await fill(y);
    const choices = Array.from({ length: tokens }, () => {
      const free = Array.from({ length: experts }, (_, expert) => expert);
      return Array.from({ length: topk }, () =>
        next() < 0.1 ? -1 : free.splice(Math.floor(next() * free.length), 1)[0]!,
      );
    });
    await topkIdx.fromHost(Int32Array.from(choices.flat()));
    await topkWeights.fromHost(Float32Array.from({ length: tokens * topk }, next));
  };
  await refill();
  const sizes = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk };
  return {
    refill,
    config(mode) {
      return mode === 'rank-major' ? { ...sizes, layout: mode } : { ...sizes, combineTravels: mode };
    },
    dispatchArgs(mode) {
      return { x, topkIdx, ...(mode !== 'choices' && { topkWeights }), dtype: 'bf16' };
    },
    combineArgs(mode, { recvX, handle }) {
      const rows = mode === 'rank-major' ? y : recvX;
      return { x: rows, handle, ...(mode === 'choices' && { topkWeights }) };
    },
  };
}

/** The modes that such ranks on so many hosts can have. */
export function modesOn({ kind }: Pick<EpDevice, 'kind'>, hosts: number): readonly LowLatencyMode[] {
  return lowLatencyModes.filter((mode) => mode !== 'choices' || kind === 'cpu' || hosts === 1);
}
