// What the kernels tell the host of a layer's dispatch: how many rows arrive everywhere, or why none will.
import { epStatus } from '../../../abi/ep.ts';
import { layerHostPlan, layerRecordWords } from '../../../abi/ep-layer.ts';
import { Block } from '../../../abi/layout.ts';
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { HostMemory } from '../../../device/cuda/host-memory.ts';
import { type ChoicePlace, choiceAt, invalidThere } from '../../buffer/dispatch-layout.ts';
import type { EPConfig } from '../ep-config.ts';
import { layerCapacityError } from '../expert-plan.ts';
import type { LayerInput } from '../layer-input.ts';
import { throwIfOutOfBlock, throwIfRepeated } from '../scatter-indices.ts';

export class CudaLayerPlan implements Disposable {
  readonly #config: EPConfig;
  readonly #memory: HostMemory;
  readonly #plan: Block<keyof typeof layerHostPlan.offset>;
  readonly #sequences: Readonly<Record<'sequence' | 'placeSequence', Int32Array>>;
  readonly #failed: Int32Array;
  readonly #experts: Int32Array;
  readonly #ranks: readonly number[];

  /** `ranks`: world ranks, for errors. */
  constructor(device: CudaDevice, config: EPConfig, ranks: readonly number[]) {
    this.#config = config;
    this.#ranks = ranks;
    this.#memory = device.allocateHost(layerHostPlan.size + config.numExpertsPerRank * 4);
    this.#plan = new Block(layerHostPlan, this.#memory.buffer, 0);
    const word = (name: 'sequence' | 'placeSequence'): Int32Array =>
      this.#memory.view('i32', layerHostPlan.offset[name], 1);
    this.#sequences = { sequence: word('sequence'), placeSequence: word('placeSequence') };
    this.#failed = this.#memory.view('i32', layerHostPlan.offset.failedSequence, 1);
    this.#experts = this.#memory.view('i32', layerHostPlan.size, config.numExpertsPerRank);
  }

  /** For the kernels. */
  get address(): number {
    return this.#memory.deviceAddress;
  }

  get expertsAddress(): number {
    return this.#memory.deviceAddress + layerHostPlan.size;
  }

  /** True when the counts are those of this dispatch; the kernel stores the sequence number last. */
  isCounted(sequence: number): boolean {
    return Atomics.load(this.#sequences.sequence, 0) === (sequence | 0);
  }

  /** The same of the kernel that places rows as the caller says. */
  isPlaced(sequence: number): boolean {
    return Atomics.load(this.#sequences.placeSequence, 0) === (sequence | 0);
  }

  /** Rows that each rank receives. */
  get recvRows(): number[] {
    return Array.from({ length: this.#config.worldSize }, (_, rank) => this.#plan.get('recvRows', rank));
  }

  get perExpert(): number[] {
    return [...this.#experts];
  }

  /** Tokens that came once and have several rows here. */
  get repeated(): number {
    return this.#plan.get('repeated');
  }

  /** More rows come than the output holds; nothing else is wrong. */
  get mustGrow(): boolean {
    return this.#plan.get('status') === epStatus.grow;
  }

  /** Why a dispatch with a bound on its rows failed, as every rank finds it; it is then forgotten. Undefined if none did. */
  takeFailure(): WeftlineError | undefined {
    if (Atomics.load(this.#failed, 0) === 0) return undefined;
    const status = this.#plan.get('failedStatus');
    const rank = this.#plan.get('failedCulprit');
    const detail = this.#plan.get('failedDetail');
    const bound = this.#plan.get('failedExtent');
    Atomics.store(this.#failed, 0, 0);
    if (status === epStatus.capacity) return layerCapacityError(this.#ranks[rank]!, { rows: detail, bound });
    if (status === epStatus.badChoice) return invalidThere(this.#choiceAt(detail), this.#ranks[rank]!);
    return this.#disagreement(status, this.#ranks[rank]!, detail);
  }

  /** Throws the error that every rank finds alike, if there is one. */
  async throwIfFailed(input: LayerInput): Promise<void> {
    const status = this.#plan.get('status');
    if (status === epStatus.good || status === epStatus.grow) return;
    const rank = this.#plan.get('culprit');
    const detail = this.#plan.get('detail');
    const statuses = Array.from({ length: this.#config.worldSize }, (_, one) => (one === rank ? detail + 1 : 0));
    if (status === epStatus.badPlace) throwIfOutOfBlock(statuses, this.#ranks);
    if (status === epStatus.emptyRow) throwIfRepeated(statuses, this.#ranks);
    if (status === epStatus.badChoice) throw await this.#badChoice(input, rank, detail);
    throw this.#disagreement(status, this.#ranks[rank]!, detail);
  }

  [Symbol.dispose](): void {
    this.#memory[Symbol.dispose]();
  }

  /** The rank that passed the choice says which value it was. */
  async #badChoice({ topkIdx }: LayerInput, rank: number, cell: number): Promise<WeftlineError> {
    const { place, range } = this.#choiceAt(cell);
    if (rank !== this.#config.rank) return invalidThere({ place, range }, this.#ranks[rank]!, 'the value');
    return invalidArgument(place, Number((await topkIdx.toHost())[cell]), range);
  }

  #choiceAt(cell: number): ChoicePlace {
    const { maxTopk: topk, numExperts: experts } = this.#config;
    return choiceAt({ name: 'topkIdx', experts, dropped: experts }, topk, cell);
  }

  #disagreement(status: number, rank: number, word: number): WeftlineError {
    if (status !== epStatus.mismatch) {
      return new WeftlineError(
        'WL_CONFIG_MISMATCH',
        `This rank is in layer dispatch, but rank ${rank} is in another call; all ranks must make the same calls in the same order`,
        { details: { rank } },
      );
    }
    const field = Object.entries(layerRecordWords).find(([, at]) => at === word)?.[0] ?? `word ${word}`;
    return new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `The ranks disagree on ${field}: rank ${rank} differs from rank ${this.#ranks[0]}; all must pass the same kind of tensors`,
      { details: { field, rank } },
    );
  }
}
