// Which file of a model's folder holds which tensor: model.safetensors.index.json.
import { quote } from '../../../core/quote.ts';
import { formatError } from '../safetensors-header.ts';
import { readJson } from './model-config.ts';

/** The largest published ones have 9 MB. */
const MAX_INDEX_BYTES: number = 64 << 20;

/** Files by tensor. Fails with WL_FILE or WL_FILE_FORMAT; a file is a name in the same folder, nothing else. */
export function readShardIndex(path: string): ReadonlyMap<string, string> {
  const value = readJson(path, MAX_INDEX_BYTES);
  const map = typeof value === 'object' && value !== null && 'weight_map' in value ? value.weight_map : undefined;
  if (typeof map !== 'object' || map === null || Array.isArray(map)) {
    throw formatError(path, `it has no object weight_map, which says what file each tensor is in; fetch it again`);
  }
  const files = new Map<string, string>();
  for (const [tensor, file] of Object.entries(map)) {
    if (typeof file !== 'string' || !/^[\w.-]+\.safetensors$/.test(file)) {
      throw formatError(
        path,
        `tensor ${quote(tensor)} is in ${quote(file)}, expected the name of a .safetensors file`,
        {
          tensor,
        },
      );
    }
    files.set(tensor, file);
  }
  return files;
}
