// The weights of an expert in a model's files: which types are read, and that its tensors and their scales fit each other.
import { printable, quote } from '../../../core/quote.ts';
import { FP8_GROUP } from '../../../abi/element-formats.ts';
import { shapeOf } from '../moe-block.ts';
import { formatError } from '../safetensors-header.ts';
import { scaleTypes, weightTypes } from '../weight-reader.ts';
import type { ExpertNames } from './architectures.ts';
import type { ModelFolder } from './model-folder.ts';

/** The tensor with the scales of a tensor of fp8. */
export function scalesOf(name: string): string {
  return `${name}_scale_inv`;
}

/** Width of an expert, whose three tensors must fit each other. Fails with WL_FILE_FORMAT. */
export async function widthOf(
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

/** Of fp8 weights. */
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

/** Of weights that are stored in another way there is no plain tensor. */
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
