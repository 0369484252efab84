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
    const numbers: number[] = [];
    for (const name of folder.names()) {
      if (!name.startsWith(prefix) || !name.endsWith(`.${router}`)) continue;
      const digits = name.slice(prefix.length, -router.length - 1);
      // A layer behind the last one predicts further tokens, in training and for drafts; the model itself does not have it.
      if (/^(0|[1-9]\d{0,5})$/.test(digits) && Number(digits) < end) numbers.push(Number(digits));
    }
    if (numbers.length === 0) continue;
    const nameOf = (layer: number, tensor: string): string => `${prefix}${layer}.${tensor}`;
    return { architecture, numbers: numbers.toSorted((one, other) => one - other), nameOf };
  }
  const expected = quote(`${prefixes[0]}N.${router}`);
  throw formatError(
    folder.path,
    `no layer has experts: expected tensors ${expected} of model_type ${folder.config.model_type}`,
  );
}
