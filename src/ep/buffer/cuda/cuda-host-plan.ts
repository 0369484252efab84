// What the prepare kernel tells the host of a dispatch: how many rows arrive, or why none will.
import { epHostPlan, epStatus } from '../../../abi/ep.ts';
import { epRecordWords } from '../../../abi/exchange-record.ts';
import { alignUp, Block } from '../../../abi/layout.ts';
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { HostMemory } from '../../../device/cuda/host-memory.ts';
import { choiceAt, invalidThere } from '../dispatch-layout.ts';
import { capacityError } from '../receive-plan.ts';
import type { EpScope } from '../scope.ts';

/** What a kernel says of a dispatch that failed. */
interface EpFailure {
  /** Number of the dispatch. */
  readonly sequence: number;
  /** One of epStatus. */
  readonly status: number;
  /** The rank that differs, passed a bad choice, or would receive too much. */
  readonly rank: number;
  /** See epHostPlan. */
  readonly detail: number;
  readonly extent: number;
}

export class CudaHostPlan implements Disposable {
  readonly #scope: EpScope<CudaDevice>;
  readonly #memory: HostMemory;
  readonly #plan: Block<keyof typeof epHostPlan.offset>;
  readonly #sequence: Int32Array;
  readonly #failed: Int32Array;
  readonly #experts: Int32Array;

  constructor(scope: EpScope<CudaDevice>) {
    const experts = scope.config.numExperts / scope.group.size;
    this.#scope = scope;
    this.#memory = scope.device.allocateHost(epHostPlan.size + experts * 4);
    this.#plan = new Block(epHostPlan, this.#memory.buffer, 0);
    this.#sequence = this.#memory.view('i32', epHostPlan.offset.sequence, 1);
    this.#failed = this.#memory.view('i32', epHostPlan.offset.failedSequence, 1);
    this.#experts = this.#memory.view('i32', epHostPlan.size, experts);
  }

  /** For the kernel. */
  get address(): number {
    return this.#memory.deviceAddress;
  }

  get expertsAddress(): number {
    return this.#memory.deviceAddress + epHostPlan.size;
  }

  /** True when the rest is of that dispatch; the kernel stores the sequence number last. */
  isThere(sequence: number): boolean {
    return Atomics.load(this.#sequence, 0) === (sequence | 0);
  }

  get numRecvTokens(): number {
    return this.#plan.get('numRecvTokens');
  }

  /** Choices of each local expert, rounded up to the alignment. */
  perExpert(alignment: number): number[] {
    return Array.from(this.#experts, (count) => alignUp(count, alignment));
  }

  /** Rows that this rank sends to other hosts, one per token and host. */
  get networkRows(): number {
    const ways = this.#scope.group.topology.hosts.length - 1;
    return Array.from({ length: ways }, (_, way) => this.#plan.get('wayTokens', way)).reduce(
      (sum, rows) => sum + rows,
      0,
    );
  }

  rankPrefixMatrix(): Int32Array {
    const cells = this.#scope.group.size ** 2;
    return Int32Array.from({ length: cells }, (_, cell) => this.#plan.get('rankPrefixMatrix', cell));
  }

  /** Why a dispatch other than `except` failed, as every rank finds it; the failure is then forgotten. Undefined if none failed. */
  takeFailure(except = 0): EpFailure | undefined {
    const sequence = Atomics.load(this.#failed, 0) >>> 0;
    if (sequence === 0 || sequence === except) return undefined;
    const failure = {
      sequence,
      status: this.#plan.get('status'),
      rank: this.#plan.get('culprit'),
      detail: this.#plan.get('detail'),
      extent: this.#plan.get('extent'),
    };
    Atomics.store(this.#failed, 0, 0);
    return failure;
  }

  /** `choice`: the bad value if this rank passed it, undefined if another one did, `unknown` if no rank knows it any more. */
  errorOf(failure: EpFailure, choice?: number | bigint | 'unknown'): WeftlineError {
    const { status, detail } = failure;
    const { ranks } = this.#scope.group;
    const rank = ranks[failure.rank]!;
    if (status === epStatus.capacity) return capacityError(rank, { rows: detail, bound: failure.extent });
    if (status === epStatus.badChoice) return this.#badChoice(failure, choice);
    return mismatch(rank, ranks[0]!, detail);
  }

  [Symbol.dispose](): void {
    this.#memory[Symbol.dispose]();
  }

  #badChoice(
    { rank: index, detail: cell, extent: columns }: EpFailure,
    choice: number | bigint | 'unknown' | undefined,
  ): WeftlineError {
    const { config, group } = this.#scope;
    const rank = group.ranks[index]!;
    const where = choiceAt({ name: 'topkIdx', experts: config.numExperts, dropped: -1 }, columns, cell);
    if (choice === undefined) return invalidThere(where, rank, 'the value');
    if (choice === 'unknown') return invalidThere(where, rank);
    return invalidArgument(where.place, Number(choice), where.range);
  }
}

function mismatch(rank: number, first: number, word: number): WeftlineError {
  const field = Object.entries(epRecordWords).find(([, at]) => at === word)?.[0] ?? `word ${word}`;
  return new WeftlineError(
    'WL_CONFIG_MISMATCH',
    `The ranks disagree on ${field}: rank ${rank} differs from rank ${first}; all must pass the same kind of tensors`,
    { details: { field, rank } },
  );
}
