// The choices of experts that a MoE block has recorded, such as that of `weftline moe`.
import { blockTensors } from '../../moe/moe-block.ts';
import { SafetensorsFile } from '../../moe/safetensors-file.ts';
import type { RecordedChoices } from './routing.ts';

/** Fails with WL_FILE if the file cannot be read, with WL_FILE_FORMAT if it is not a block. */
export async function readRecordedChoices(path: string): Promise<RecordedChoices> {
  await using file = await SafetensorsFile.open(path);
  const [tokens = 0, topk = 0] = file.entry(blockTensors.topkIdx).shape;
  const [experts = 0] = file.entry(blockTensors.gateUp).shape;
  const chosen = Int32Array.from(await file.read(blockTensors.topkIdx, 'i64'), Number);
  return { tokens, topk, experts, chosen };
}
