// Brings the weights of a rank's next experts here: from this rank, or by reads from the nearest rank that has them.
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Agent } from '../../agent/agent.ts';
import { DescriptorList } from '../../agent/descriptors.ts';
import type { Registration } from '../../agent/registration.ts';
import type { RemoteMemory } from '../../agent/remote-agent.ts';
import { type CallWait, remaining } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { ExpertPlan } from './expert-plan.ts';
import type { Placement } from './placement.ts';

/** The place of the weights that are in force. */
export interface ExpertSources {
  /** The placement in force. */
  readonly placement: Placement;
  readonly memory: ExpertMemory;
  /** The half in force, on all ranks; the other one is written to. */
  readonly half: Half;
  readonly agent: Agent;
  /** The agent's registration of the memory. */
  readonly registration: Registration;
  /** World ranks of the group's ranks, for errors. */
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

/** A move for each slot of this rank. Several slots of one expert read from its nearest copies in turn. */
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

// What the weights of each expert sum up to, as the ranks found when they loaded them.

export class ExpertChecksums {
  /** [layers, experts] */
  readonly #sums: Float64Array;
  readonly #experts: number;

  /**
   * `told`: by rank, then by layer and slot. Fails with WL_CONFIG_MISMATCH, naming expert and ranks, where copies differ.
   * `worldRanks` are for errors.
   */
  constructor(plan: ExpertPlan, told: readonly (readonly number[])[], worldRanks: readonly number[]) {
    const { layers, experts, physical, ranks, maxReplicas, logicalToPhysical, replicaCounts } = plan;
    const slots = physical / ranks;
    const sumOf = (layer: number, copy: number): number =>
      told[Math.floor(copy / slots)]![layer * slots + (copy % slots)]!;
    this.#experts = experts;
    this.#sums = new Float64Array(layers * experts);
    for (let entry = 0; entry < layers * experts; entry++) {
      const layer = Math.floor(entry / experts);
      const copies = logicalToPhysical.subarray(entry * maxReplicas, entry * maxReplicas + replicaCounts[entry]!);
      const first = copies[0]!;
      const odd = copies.find((copy) => sumOf(layer, copy) !== sumOf(layer, first));
      if (odd !== undefined) {
        const [one, two] = [first, odd].map((copy) => worldRanks[Math.floor(copy / slots)]);
        throw new WeftlineError(
          'WL_CONFIG_MISMATCH',
          `The weights of expert ${entry % experts} of layer ${layer} differ between rank ${one} and rank ${two}`,
          { details: { layer, expert: entry % experts, ranks: [one, two] } },
        );
      }
      this.#sums[entry] = sumOf(layer, first);
    }
  }

  of(layer: number, expert: number): number {
    return this.#sums[layer * this.#experts + expert]!;
  }
}

// The weights of a rank's experts, twice: those in force, and those of the next epoch while they come.

/** Bytes that are copied or summed before the event loop gets its turn. */
const PIECE_BYTES = 1 << 20;

/** One of the two copies. */
export type Half = 0 | 1;

interface ExpertMemoryShape {
  readonly layers: number;
  /** Physical experts of the rank. */
  readonly slots: number;
  readonly expertBytes: number;
}

export class ExpertMemory implements Disposable {
  /** u8 [2, layers, slots, expertBytes], the same on all ranks. */
  readonly tensor: Tensor<'u8'>;
  readonly #shape: ExpertMemoryShape;
  readonly #device: CpuDevice;

  /** Fails with WL_MEMORY. */
  constructor(device: CpuDevice, shape: ExpertMemoryShape) {
    const { layers, slots, expertBytes } = shape;
    this.#device = device;
    this.#shape = shape;
    this.tensor = device.empty('u8', [2, layers, slots, expertBytes]);
  }

  /** Offset of an expert's bytes in the tensor. */
  offset(half: Half, layer: number, slot: number): number {
    const { layers, slots, expertBytes } = this.#shape;
    return ((half * layers + layer) * slots + slot) * expertBytes;
  }

  /** [layers, slots, expertBytes] */
  half(half: Half): Tensor<'u8'> {
    return this.tensor.slice(half, half + 1).reshape(this.tensor.shape.slice(1));
  }

  /** The bytes of an expert in place. */
  bytes(half: Half, layer: number, slot: number): Uint8Array {
    const first = this.offset(half, layer, slot);
    return this.tensor.view().subarray(first, first + this.#shape.expertBytes);
  }

  /** CRC-32C of an expert's bytes, in slices between which other work of the thread is done. */
  async checksum(half: Half, layer: number, slot: number): Promise<number> {
    const address = this.tensor.address + this.offset(half, layer, slot);
    const { expertBytes } = this.#shape;
    let crc = 0;
    for (let done = 0; done < expertBytes; done += PIECE_BYTES) {
      if (done > 0) await nextTurn();
      crc = this.#device.kernels.crc32c(crc, address + done, Math.min(PIECE_BYTES, expertBytes - done));
    }
    return crc >>> 0;
  }

  /** Copies an expert of this rank to a slot of the other half, in slices. */
  async copy(
    from: { readonly half: Half; readonly layer: number; readonly slot: number },
    slot: number,
  ): Promise<void> {
    const { half, layer } = from;
    const source = this.bytes(half, layer, from.slot);
    const target = this.bytes(half === 0 ? 1 : 0, layer, slot);
    for (let done = 0; done < source.length; done += PIECE_BYTES) {
      if (done > 0) await nextTurn();
      target.set(source.subarray(done, done + PIECE_BYTES), done);
    }
  }

  [Symbol.dispose](): void {
    this.tensor.close();
  }
}
