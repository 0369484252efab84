// What a low-latency bench makes of its workload, on CPUs and GPUs alike.
import type { LowLatencyConfig } from '../../../../ep/index.ts';
import type { EpWorkload } from '../ep-workload.ts';
import type { LowLatencyVariant } from './low-latency-results.ts';

/** Rows of an expert in the variant 'choices', which takes them all in the window: so many times the mean. */
const ROOM_PER_EXPERT = 4;

export function lowLatencyConfigOf(
  { ranks, tokens, hidden, topk, experts }: Omit<EpWorkload, 'dtype'>,
  variant: LowLatencyVariant,
  numSms = 0,
): LowLatencyConfig {
  const config: LowLatencyConfig = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk, numSms };
  if (variant === 'rank-major') return { ...config, layout: variant };
  const most = ranks * tokens;
  const room = Math.min(most, Math.ceil((ROOM_PER_EXPERT * most * topk) / experts));
  const overflow = 'drop' as const;
  return { ...config, combineTravels: variant, ...(variant === 'choices' && { maxTokensPerExpert: room, overflow }) };
}
