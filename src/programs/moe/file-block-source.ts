// A MoE block from one safetensors file that holds tokens, weights and, in some files, choices and the expected output.
import { WeftlineError } from '../../core/errors.ts';
import type { BlockSource, GivenChoices } from './block-source.ts';
import { emptyExperts, type ExpertWeights } from './experts.ts';
import { blockTensors, describeMoeBlock, type MoeBlock, type MoeBlockOptions } from './moe-block.ts';
import type { GateWeights, MoeDevice } from './moe-engine.ts';
import { SafetensorsFile } from './safetensors-file.ts';
import type { WeightReader } from './weight-reader.ts';

export class FileBlockSource implements BlockSource {
  readonly block: MoeBlock;
  readonly #file: SafetensorsFile;

  /** Fails with WL_FILE, WL_FILE_FORMAT, or WL_INVALID_ARGUMENT for options that the file does not go with. */
  static async open(path: string, options: MoeBlockOptions = {}): Promise<FileBlockSource> {
    const file = await SafetensorsFile.open(path);
    try {
      return new FileBlockSource(file, describeMoeBlock(file, options));
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  private constructor(file: SafetensorsFile, block: MoeBlock) {
    this.#file = file;
    this.block = block;
  }

  tokens(start: number, end: number): Promise<Uint16Array> {
    return this.#file.read(blockTensors.x, 'bf16', start, end);
  }

  async choices(start: number, end: number): Promise<GivenChoices> {
    const name = blockTensors.topkIdx;
    const isShort = this.#file.entry(name).dtype === 'I32';
    const ids = isShort
      ? BigInt64Array.from(await this.#file.read(name, 'i32', start, end), BigInt)
      : await this.#file.read(name, 'i64', start, end);
    return { ids, weights: await this.#file.read(blockTensors.topkWeights, 'f32', start, end) };
  }

  async gate(): Promise<GateWeights> {
    return { gate: await this.#file.read(blockTensors.gate, 'bf16') };
  }

  reference(start: number, end: number): Promise<Float32Array> {
    return this.#file.read(blockTensors.reference, 'f32', start, end);
  }

  async experts(device: MoeDevice, reader: WeightReader, ids: readonly number[]): Promise<ExpertWeights> {
    const { hidden, intermediate } = this.block;
    const { gateUp, down } = emptyExperts(device, { count: ids.length, hidden, intermediate });
    for (const [at, id] of ids.entries()) {
      for (const [name, tensor] of [
        [blockTensors.gateUp, gateUp],
        [blockTensors.down, down],
      ] as const) {
        const expert = tensor.slice(at, at + 1);
        await reader.read({ file: this.#file, name, skip: id * expert.elements }, expert);
      }
    }
    return { gateUp, down };
  }

  sharedExpert(): Promise<ExpertWeights> {
    throw new WeftlineError('WL_INTERNAL', `${this.#file.path} has no shared expert`);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#file.close();
  }
}
