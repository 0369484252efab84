// Where a MoE block's tokens and weights come from: a file of one block, or a model's folder and a file of tokens.
import type { ExpertWeights } from './experts.ts';
import type { MoeBlock } from './moe-block.ts';
import type { GateWeights, MoeDevice } from './moe-engine.ts';
import type { WeightReader } from './weight-reader.ts';

/** Expert ids and weights, [tokens, K]. */
export interface GivenChoices {
  readonly ids: BigInt64Array;
  readonly weights: Float32Array;
}

/** Reads no more than each call asks for. All fail with WL_FILE or WL_FILE_FORMAT. */
export interface BlockSource extends AsyncDisposable {
  readonly block: MoeBlock;
  /** bf16 [end - start, H] */
  tokens(start: number, end: number): Promise<Uint16Array>;
  /** Of a block whose `routing` is 'file'; not checked. */
  choices(start: number, end: number): Promise<GivenChoices>;
  /** Of a block whose `routing` is 'gate'. */
  gate(): Promise<GateWeights>;
  /** f32 [end - start, H], of a block that has a reference. */
  reference(start: number, end: number): Promise<Float32Array>;
  /** The experts with these numbers, in this order. */
  experts(device: MoeDevice, reader: WeightReader, ids: readonly number[]): Promise<ExpertWeights>;
  /** The expert that all tokens go through, as weights of one expert; of a block that has one. */
  sharedExpert(device: MoeDevice, reader: WeightReader): Promise<ExpertWeights>;
}
