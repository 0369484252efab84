// A MoE block from a layer of a model's folder, and its tokens from a file of their own.
import { fromBf16, toBf16 } from '../../../core/dtype.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { BlockSource, GivenChoices } from '../block-source.ts';
import { emptyExperts, type ExpertWeights } from '../experts.ts';
import type { MoeBlock, MoeBlockOptions } from '../moe-block.ts';
import type { GateWeights, MoeDevice } from '../moe-engine.ts';
import { SafetensorsFile } from '../safetensors-file.ts';
import { readBf16Rows, readF32Rows, type WeightPlace, type WeightReader } from '../weight-reader.ts';
import type { ExpertNames } from './architectures.ts';
import { type BlockNames, describeCheckpointBlock } from './checkpoint-block.ts';
import { scalesOf } from './checkpoint-weights.ts';
import type { ModelFolder } from './model-folder.ts';

export class CheckpointSource implements BlockSource {
  readonly block: MoeBlock;
  readonly #folder: ModelFolder;
  readonly #input: SafetensorsFile;
  readonly #names: BlockNames;

  /** Borrows the folder, whose files it closes at its end. Fails as describeCheckpointBlock(). */
  static async open(
    folder: ModelFolder,
    options: MoeBlockOptions & { readonly layer: number; readonly input: string },
  ): Promise<CheckpointSource> {
    const { input: path, ...rest } = options;
    const input = await SafetensorsFile.open(path);
    try {
      const { block, names } = await describeCheckpointBlock(folder, input, rest);
      return new CheckpointSource({ folder, input, block, names });
    } catch (error) {
      await input.close();
      throw error;
    }
  }

  private constructor(of: {
    readonly folder: ModelFolder;
    readonly input: SafetensorsFile;
    readonly block: MoeBlock;
    readonly names: BlockNames;
  }) {
    this.block = of.block;
    this.#folder = of.folder;
    this.#input = of.input;
    this.#names = of.names;
  }

  tokens(start: number, end: number): Promise<Uint16Array> {
    return readBf16Rows(this.#input, this.#names.x, start, end);
  }

  choices(): Promise<GivenChoices> {
    throw new WeftlineError('WL_INTERNAL', 'A model has no choices of its own');
  }

  async gate(): Promise<GateWeights> {
    const { router, bias, sharedGate } = this.#names;
    const values = await this.#small(router);
    const gate = Uint16Array.from(values, toBf16);
    const isFiner = (await this.#folder.fileOf(router)).entry(router).dtype !== 'BF16';
    return {
      gate,
      ...(isFiner ? { gateRest: Uint16Array.from(values, (value, at) => toBf16(value - fromBf16(gate[at]!))) } : {}),
      ...(bias === undefined ? {} : { bias: await this.#small(bias) }),
      ...(sharedGate === undefined ? {} : { sharedGate: Uint16Array.from(await this.#small(sharedGate), toBf16) }),
    };
  }

  reference(start: number, end: number): Promise<Float32Array> {
    return this.#input.read(this.#names.reference, 'f32', start, end);
  }

  async experts(device: MoeDevice, reader: WeightReader, ids: readonly number[]): Promise<ExpertWeights> {
    const { hidden, intermediate } = this.block;
    const weights = emptyExperts(device, { count: ids.length, hidden, intermediate });
    for (const [at, id] of ids.entries()) {
      const { gateUp, down } = weights;
      await this.#read(reader, this.#names.expert(id), {
        gateUp: gateUp.slice(at, at + 1),
        down: down.slice(at, at + 1),
      });
    }
    return weights;
  }

  async sharedExpert(device: MoeDevice, reader: WeightReader): Promise<ExpertWeights> {
    const { shared } = this.#names;
    const { hidden, sharedIntermediate: intermediate } = this.block;
    if (shared === undefined || intermediate === undefined) {
      throw new WeftlineError('WL_INTERNAL', `${this.block.path} has no shared expert`);
    }
    const weights = emptyExperts(device, { count: 1, hidden, intermediate });
    await this.#read(reader, shared, weights);
    return weights;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#input.close();
    await this.#folder.closeFiles();
  }

  async #small(name: string): Promise<Float32Array> {
    return await readF32Rows(await this.#folder.fileOf(name), name);
  }

  /** One expert into tensors of one expert. */
  async #read(reader: WeightReader, { gate, up, down }: ExpertNames, out: ExpertWeights): Promise<void> {
    const [, doubled = 0, hidden = 0] = out.gateUp.shape;
    const width = doubled / 2;
    const both = out.gateUp.reshape([doubled, hidden]);
    await reader.read(await this.#place(gate), both.slice(0, width));
    await reader.read(await this.#place(up), both.slice(width, doubled));
    await reader.read(await this.#place(down), out.down.reshape([hidden, width]));
  }

  async #place(name: string): Promise<WeightPlace> {
    const file = await this.#folder.fileOf(name);
    const scales = scalesOf(name);
    if (!this.#folder.has(scales)) return { file, name };
    return { file, name, scales: { file: await this.#folder.fileOf(scales), name: scales } };
  }
}
