// Brings the weights of a rank's next experts here: from this rank, or by reads from the nearest rank that has them.
import type { Agent } from '../../agent/agent.ts';
import { DescriptorList } from '../../agent/descriptors.ts';
import type { Registration } from '../../agent/registration.ts';
import type { RemoteMemory } from '../../agent/remote-agent.ts';
import { type CallWait, remaining } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { ExpertChecksums } from './expert-checksums.ts';
import type { ExpertMemory, Half } from './expert-memory.ts';
import type { ExpertPlan } from './expert-plan.ts';
import type { Placement } from './placement.ts';

/** Where weights are now. */
export interface ExpertSources {
  /** In force. */
  readonly placement: Placement;
  readonly memory: ExpertMemory;
  /** In force, on all ranks; the other one is written to. */
  readonly half: Half;
  readonly agent: Agent;
  /** Of the memory. */
  readonly registration: Registration;
  /** Of the group's ranks, for errors. */
  readonly worldRanks: readonly number[];
  readonly checksums: ExpertChecksums;
  readonly peer: (rank: number) => { readonly agent: string; readonly memory: RemoteMemory };
}

/** One expert for one slot of this rank. */
interface Move {
  readonly layer: number;
  readonly slot: number;
  readonly expert: number;
  /** Rank and slot that have it now. */
  readonly source: number;
  readonly sourceSlot: number;
}

/**
 * Resolves when all experts are here and verified. Fails with the first error, naming expert and rank, once nothing is
 * under way any more. Reads from different ranks go on at the same time, those from one rank one after the other.
 */
export async function fetchExperts(sources: ExpertSources, plan: ExpertPlan, wait: CallWait): Promise<void> {
  const bySource = new Map<number, Move[]>();
  for (const move of movesTo(plan, sources.placement)) {
    const list = bySource.get(move.source) ?? [];
    bySource.set(move.source, list);
    list.push(move);
  }
  const ending = new AbortController();
  const signal = wait.signal === undefined ? ending.signal : AbortSignal.any([ending.signal, wait.signal]);
  const failures: unknown[] = [];
  await Promise.all(
    [...bySource.values()].map(async (moves) => {
      try {
        for (const move of moves) await fetchExpert(sources, move, { ...wait, signal });
      } catch (error) {
        failures.push(error);
        ending.abort(error);
      }
    }),
  );
  if (failures.length > 0) throw failures[0];
}

/** Those of one expert are read from its nearest copies in turn. */
function movesTo(next: ExpertPlan, now: Placement): Move[] {
  const { rank, slots } = now;
  const moves: Move[] = [];
  for (let layer = 0; layer < next.layers; layer++) {
    const first = layer * next.physical + rank * slots;
    for (const [slot, expert] of next.physicalToLogical.subarray(first, first + slots).entries()) {
      const copies = now.nearestCopies(layer, expert);
      const copy = copies[(rank + slot) % copies.length]!;
      moves.push({ layer, slot, expert, source: Math.floor(copy / slots), sourceSlot: copy % slots });
    }
  }
  return moves;
}

async function fetchExpert(sources: ExpertSources, move: Move, wait: CallWait): Promise<void> {
  const { placement, memory, half, checksums } = sources;
  const { layer, slot, expert, source, sourceSlot } = move;
  wait.signal?.throwIfAborted();
  try {
    if (source === placement.rank) await memory.copy({ half, layer, slot: sourceSlot }, slot);
    else await readExpert(sources, move, wait);
  } catch (error) {
    throw cannotMove(sources, move, error);
  }
  const sum = await memory.checksum(other(half), layer, slot);
  const expected = checksums.of(layer, expert);
  if (sum !== expected) throw cannotMove(sources, move, wrongBytes(sum, expected));
}

async function readExpert(sources: ExpertSources, move: Move, wait: CallWait): Promise<void> {
  const { memory, half, agent, registration } = sources;
  const { layer, slot, source, sourceSlot } = move;
  const peer = sources.peer(source);
  const bytes = memory.tensor.shape[3]!;
  await using transfer = await agent.prepare({
    operation: 'read',
    peer: peer.agent,
    local: DescriptorList.of(registration, memory.offset(other(half), layer, slot), bytes),
    remote: DescriptorList.of(peer.memory, memory.offset(half, layer, sourceSlot), bytes),
    ...remaining(wait),
  });
  transfer.post();
  await transfer.wait(remaining(wait));
}

function other(half: Half): Half {
  return half === 0 ? 1 : 0;
}

function hex(crc: number): string {
  return crc.toString(16).padStart(8, '0');
}

function wrongBytes(sum: number, expected: number): WeftlineError {
  return new WeftlineError(
    'WL_CHECK',
    `its bytes have the CRC-32C ${hex(sum)}, expected ${hex(expected)}, that of the weights that were loaded; weights in force must not be written to`,
  );
}

/** What the signal gave stays what it is. */
function cannotMove({ worldRanks }: ExpertSources, { layer, expert, source }: Move, cause: unknown): unknown {
  if (!(cause instanceof WeftlineError)) return cause;
  const rank = worldRanks[source];
  return new WeftlineError(
    cause.code,
    `Cannot bring expert ${expert} of layer ${layer} from rank ${rank}: ${cause.message}`,
    { details: { ...cause.details, layer, expert, ranks: [rank] }, cause },
  );
}
