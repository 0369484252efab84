// The one limit of EpLowLatency on where its ranks are.
import { WeftlineError } from '../../core/errors.ts';
import type { RankGroup } from '../../world/rank-group.ts';

/** Fails with WL_UNSUPPORTED for ranks on several hosts. */
export function requireOneHost({ topology }: RankGroup): void {
  const { length } = topology.hosts;
  if (length === 1) return;
  const message = `EpLowLatency works within one host for now, and the group's ranks are on ${length}: use EpBuffer there`;
  throw new WeftlineError('WL_UNSUPPORTED', message, { details: { hosts: length } });
}
