// Which layers of a model have a MoE block, and under which names its tensors stand.
import { quote } from '../../../core/quote.ts';
import { formatError } from '../safetensors-header.ts';
import { type Architecture, architectureOf } from './architectures.ts';
import type { ModelFolder } from './model-folder.ts';

/** A checkpoint of the bare model leaves out the first word. */
const prefixes = ['model.layers.', 'layers.'] as const;

export interface ModelLayers {
  readonly architecture: Architecture;
  /** Numbers of the layers that have experts, ascending. */
  readonly numbers: readonly number[];
  /** Of those in the files that the configuration does not count, ascending: they have experts, and are not the model's. */
  readonly behind: readonly number[];
  /** The full name of a layer's tensor. */
  readonly nameOf: (layer: number, tensor: string) => string;
}

/** Fails with WL_FILE_FORMAT if the architecture is not known, or no layer has experts. */
export function findModelLayers(folder: ModelFolder): ModelLayers {
  const architecture = architectureOf(folder.config);
  if (typeof architecture === 'string') throw formatError(`${folder.path}/config.json`, architecture);
  const { router } = architecture;
  const end = folder.config.num_hidden_layers ?? Infinity;
  for (const prefix of prefixes) {
    const all: number[] = [];
    for (const name of folder.names()) {
      if (!name.startsWith(prefix) || !name.endsWith(`.${router}`)) continue;
      const digits = name.slice(prefix.length, -router.length - 1);
      if (/^(0|[1-9]\d{0,5})$/.test(digits)) all.push(Number(digits));
    }
    if (all.length === 0) continue;
    all.sort((one, other) => one - other);
    // A layer behind the last one predicts further tokens, in training and for drafts; the model itself does not have it.
    const numbers = all.filter((layer) => layer < end);
    const behind = all.filter((layer) => layer >= end);
    if (numbers.length === 0) {
      throw formatError(
        `${folder.path}/config.json`,
        `num_hidden_layers is ${end}, and the layers with experts in the files are ${describeNumbers(behind)}, expected at least one below num_hidden_layers: fetch config.json and the files again from the same model`,
      );
    }
    const nameOf = (layer: number, tensor: string): string => `${prefix}${layer}.${tensor}`;
    return { architecture, numbers, behind, nameOf };
  }
  const expected = quote(`${prefixes[0]}N.${router}`);
  throw formatError(
    folder.path,
    `no layer has experts: expected tensors ${expected} of model_type ${folder.config.model_type}`,
  );
}

/** "0, 2 to 5" */
export function describeNumbers(values: readonly number[]): string {
  const runs: string[] = [];
  for (let at = 0; at < values.length;) {
    let end = at;
    while (values[end + 1] === values[end]! + 1) end++;
    runs.push(end === at ? `${values[at]}` : `${values[at]} to ${values[end]}`);
    at = end + 1;
  }
  return runs.join(', ');
}
