// What ranks tell each other of the plans that they were given, and in which words plans differ.
import { createHash } from 'node:crypto';
import { WeftlineError } from '../../core/errors.ts';
import type { ExpertPlan } from './expert-plan.ts';

const sizes = ['layers', 'experts', 'ranks', 'physical'] as const;
const DIGEST_BYTES = 12;
/** Layers that an error lists. */
const MAX_LISTED = 8;

/** A plan in short: JSON. */
export interface PlanFacts extends Readonly<Record<(typeof sizes)[number], number>> {
  /** By layer, of the table of physical experts. */
  readonly tables: readonly string[];
}

export function factsOf(plan: ExpertPlan): PlanFacts {
  const { layers, experts, ranks, physical, physicalToLogical } = plan;
  const tables = Array.from({ length: layers }, (_, layer) => {
    const table = physicalToLogical.slice(layer * physical, (layer + 1) * physical);
    return createHash('sha256').update(new Uint8Array(table.buffer)).digest('base64').slice(0, DIGEST_BYTES);
  });
  return { layers, experts, ranks, physical, tables };
}

/**
 * Fails with WL_CONFIG_MISMATCH where the plan of a rank is not that of the first one. `what` begins the error: "The ranks cut
 * over with different plans"; `worldRanks` are for errors.
 */
export function requireSamePlan(what: string, all: readonly PlanFacts[], worldRanks: readonly number[]): void {
  const first = all[0]!;
  for (const [rank, facts] of all.entries()) {
    const ranks = [worldRanks[0]!, worldRanks[rank]!] as const;
    for (const field of sizes) requireSame(`${what}: plan.${field}`, [first[field], facts[field]], ranks);
    const layers = [...facts.tables.keys()].filter((layer) => facts.tables[layer] !== first.tables[layer]);
    if (layers.length === 0) continue;
    const listed = layers.slice(0, MAX_LISTED).join(', ') + (layers.length > MAX_LISTED ? ', …' : '');
    throw new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `${what}: rank ${ranks[1]} has other experts than rank ${ranks[0]} in ${layers.length === 1 ? 'layer' : 'layers'} ${listed} of ${facts.layers}`,
      { details: { ranks, layers } },
    );
  }
}

/** Fails with WL_CONFIG_MISMATCH, with the values of both ranks. */
export function requireSame(
  what: string,
  [first, other]: readonly [number, number],
  ranks: readonly [number, number],
): void {
  if (first === other) return;
  throw new WeftlineError(
    'WL_CONFIG_MISMATCH',
    `${what} is ${first} on rank ${ranks[0]} and ${other} on rank ${ranks[1]}`,
    {
      details: { ranks, values: [first, other] },
    },
  );
}
