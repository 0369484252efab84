// A MoE block from a layer of a model's folder, and its tokens from a file of their own.
import { FP8_GROUP } from '../../../abi/element-formats.ts';
import { fromBf16, toBf16 } from '../../../core/dtype.ts';
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import { printable, quote } from '../../../core/quote.ts';
import {
  type BlockSource,
  type GivenChoices,
  readBf16Rows,
  readF32Rows,
  scaleTypes,
  type WeightPlace,
  type WeightReader,
  weightTypes,
} from '../block-source.ts';
import { maxTopk, type MoeBlock, type MoeBlockOptions, shapeOf } from '../moe-block.ts';
import { emptyExperts, type ExpertWeights, type GateWeights, type MoeDevice } from '../moe-engine.ts';
import { SafetensorsFile } from '../safetensors-file.ts';
import { formatError } from '../safetensors-header.ts';
import {
  type Architecture,
  describeNumbers,
  type ExpertNames,
  findModelLayers,
  type ModelLayers,
} from './architectures.ts';
import type { ModelFolder } from './model-folder.ts';

// What the block of one layer of a model is: its shape and rules from the configuration and the headers of its files.

/** Full names of the tensors of a block. */
interface BlockNames {
  readonly router: string;
  readonly bias?: string;
  readonly expert: (index: number) => ExpertNames;
  readonly shared?: ExpertNames;
  readonly sharedGate?: string;
  readonly x: string;
  readonly reference: string;
}

interface CheckpointBlock {
  readonly block: MoeBlock;
  readonly names: BlockNames;
}

/** Types of tokens and routers that are read. */
const numbers = ['BF16', 'F16', 'F32'] as const;

/**
 * Checks names and shapes of all tensors of the layer's block, for which it opens the files that hold them, and reads of their values
 * only the router's bias.
 * Fails with WL_FILE, WL_FILE_FORMAT, or WL_INVALID_ARGUMENT for a layer that has no experts.
 */
async function describeCheckpointBlock(
  folder: ModelFolder,
  input: SafetensorsFile,
  { layer, ...options }: MoeBlockOptions & { readonly layer: number },
): Promise<CheckpointBlock> {
  for (const name of ['topk', 'normalize'] as const) {
    if (options[name] !== undefined) {
      throw invalidArgument(name, options[name], `none with a model: ${folder.path}/config.json says it`);
    }
  }
  const { architecture, numbers: layers, behind, nameOf } = findModelLayers(folder);
  if (behind.includes(layer)) {
    const count = folder.config.num_hidden_layers;
    const why = `num_hidden_layers of its config.json is ${count}, and layers from ${count} on, which predict further tokens, are not run`;
    throw invalidArgument(
      'layer',
      layer,
      `a layer of ${folder.path} that has experts: ${describeNumbers(layers)} (${why})`,
    );
  }
  if (!layers.includes(layer)) {
    throw invalidArgument('layer', layer, `a layer of ${folder.path} that has experts: ${describeNumbers(layers)}`);
  }
  const rules = architecture.rules(folder.config);
  if (typeof rules === 'string') throw formatError(`${folder.path}/config.json`, rules);
  const { experts, topk } = rules;
  if (topk > Math.min(maxTopk, experts)) {
    const most = Math.min(maxTopk, experts);
    throw formatError(`${folder.path}/config.json`, `num_experts_per_tok is ${topk}, expected 1 to ${most}`);
  }
  const names = namesOf(architecture, folder, { input, layer, nameOf });
  const [tokens, hidden] = shapeOf(input, names.x, numbers, ['T', 'H']) as [number, number];
  const hasReference = input.tensors.has(names.reference);
  if (hasReference) shapeOf(input, names.reference, ['F32'], [tokens, hidden]);
  const routerFile = await folder.fileOf(names.router);
  shapeOf(routerFile, names.router, numbers, [experts, hidden]);
  if (names.bias !== undefined) await requireBias(await folder.fileOf(names.bias), names.bias, experts);
  const intermediate = await widthOf(folder, names.expert(0), hidden);
  for (let expert = 1; expert < experts; expert++) await widthOf(folder, names.expert(expert), hidden, intermediate);
  const shared = names.shared && { sharedIntermediate: await widthOf(folder, names.shared, hidden) };
  if (names.sharedGate !== undefined) {
    shapeOf(await folder.fileOf(names.sharedGate), names.sharedGate, numbers, [1, hidden]);
  }
  const model = { type: folder.config.model_type, layer, input: input.path };
  const block = { ...rules, path: folder.path, model, tokens, hidden, intermediate, ...shared, hasReference };
  return { block: { ...block, routing: 'gate' }, names };
}

/** Fails for NaN, with which no order of experts is right, and for infinity, with which there may be too few to choose from. */
async function requireBias(file: SafetensorsFile, name: string, experts: number): Promise<void> {
  shapeOf(file, name, numbers, [experts]);
  const values = await readF32Rows(file, name);
  const odd = values.findIndex((value) => !Number.isFinite(value));
  if (odd < 0) return;
  throw formatError(file.path, `tensor ${name}[${odd}] is ${values[odd]}, expected a finite number`, { tensor: name });
}

/** Names that are found in the folder, and those that every block has. */
function namesOf(
  { router, bias, expert, shared }: Architecture,
  folder: ModelFolder,
  { input, layer, nameOf }: { readonly input: SafetensorsFile; readonly layer: number } & Pick<ModelLayers, 'nameOf'>,
): BlockNames {
  const name = (tensor: string): string => nameOf(layer, tensor);
  const all = ({ gate, up, down }: ExpertNames): ExpertNames => ({ gate: name(gate), up: name(up), down: name(down) });
  const biasName = bias?.(folder.config);
  const hasShared = shared !== undefined && folder.has(name(shared.gate));
  const ofLayer = (tensor: string): string => (input.tensors.has(`${tensor}.${layer}`) ? `${tensor}.${layer}` : tensor);
  return {
    router: name(router),
    ...(biasName === undefined ? {} : { bias: name(biasName) }),
    expert: (index) => all(expert(index)),
    ...(hasShared ? { shared: all(shared) } : {}),
    ...(hasShared && shared.scale !== undefined ? { sharedGate: name(shared.scale) } : {}),
    x: ofLayer('x'),
    reference: ofLayer('output_f32'),
  };
}

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

// The weights of an expert in a model's files: which types are read, and that its tensors and their scales fit each other.

/** The tensor with the scales of a tensor of fp8. */
function scalesOf(name: string): string {
  return `${name}_scale_inv`;
}

/** Width of an expert, whose three tensors must fit each other. Fails with WL_FILE_FORMAT. */
async function widthOf(
  folder: ModelFolder,
  { gate, up, down }: ExpertNames,
  hidden: number,
  width?: number,
): Promise<number> {
  requireReadable(folder, gate);
  const file = await folder.fileOf(gate);
  const [found = 0] = shapeOf(file, gate, weightTypes, [width ?? 'I', hidden]);
  if (found === 0 || found % 8 !== 0 || hidden % 8 !== 0) {
    throw formatError(file.path, `tensor ${gate} is [${found}, ${hidden}], expected multiples of 8`, { tensor: gate });
  }
  shapeOf(await folder.fileOf(up), up, weightTypes, [found, hidden]);
  shapeOf(await folder.fileOf(down), down, weightTypes, [hidden, found]);
  for (const name of [gate, up, down]) await requireScales(folder, name);
  return found;
}

/** Fails if the scales of fp8 weights are missing or do not fit. */
async function requireScales(folder: ModelFolder, name: string): Promise<void> {
  const file = await folder.fileOf(name);
  const { dtype, shape } = file.entry(name);
  if (dtype !== 'F8_E4M3') return;
  const scales = scalesOf(name);
  if (!folder.has(scales)) {
    throw formatError(file.path, `tensor ${name} is F8_E4M3, but there is no ${scales} with its scales`, {
      tensor: name,
    });
  }
  const grid = shape.map((extent) => Math.ceil(extent / FP8_GROUP));
  shapeOf(await folder.fileOf(scales), scales, scaleTypes, grid);
}

/** Fails for weights that are stored in another way: there is no plain tensor of them. */
function requireReadable(folder: ModelFolder, name: string): void {
  const { quantization_config: quantization } = folder.config;
  if (quantization == null) return;
  const { quant_method: method, weight_block_size: block } = quantization;
  const isRead = method === 'fp8' && block?.length === 2 && block.every((extent) => extent === 128);
  if (isRead) return;
  const found = `quant_method ${method === undefined ? 'unknown' : quote(method)}${block == null ? '' : `, blocks of ${printable(block.join(' x '))}`}`;
  throw formatError(
    `${folder.path}/config.json`,
    `its weights are quantised (${found}), of which only fp8 with weight_block_size [128, 128] is read; take the model in bf16`,
    { tensor: name },
  );
}
