// What the block of one layer of a model is: its shape and rules from the configuration and the headers of its files.
import { invalidArgument } from '../../../core/errors.ts';
import { shapeOf, type MoeBlock, type MoeBlockOptions, maxTopk } from '../moe-block.ts';
import type { SafetensorsFile } from '../safetensors-file.ts';
import { formatError } from '../safetensors-header.ts';
import { readF32Rows } from '../weight-reader.ts';
import type { Architecture, ExpertNames } from './architectures.ts';
import { widthOf } from './checkpoint-weights.ts';
import type { ModelFolder } from './model-folder.ts';
import { describeNumbers, findModelLayers, type ModelLayers } from './model-layers.ts';

/** Full names of the tensors of a block. */
export interface BlockNames {
  readonly router: string;
  readonly bias?: string;
  readonly expert: (index: number) => ExpertNames;
  readonly shared?: ExpertNames;
  readonly sharedGate?: string;
  readonly x: string;
  readonly reference: string;
}

export interface CheckpointBlock {
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
export async function describeCheckpointBlock(
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

/** With NaN no order of experts is right; with -Infinity there may be too few to choose from. */
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
