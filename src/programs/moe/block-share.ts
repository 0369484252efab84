// What one rank reads of a block file: its tokens with their choices, its experts, and its part of the reference.
import type { Tensor } from '../../device/tensor.ts';
import type { LocalExperts } from './experts.ts';
import { blockTensors, type MoeBlock } from './moe-block.ts';
import type { MoeDevice, MoeEngine, Routing } from './moe-engine.ts';
import type { SafetensorsFile } from './safetensors-file.ts';
import { formatError } from './safetensors-header.ts';
import { expertShare, type Share, tokenShare } from './token-split.ts';

export interface BlockShare extends Disposable {
  readonly tokens: Share;
  /** [T, H] of this rank's tokens; so are the following. */
  readonly x: Tensor<'bf16'>;
  /** [T, K] */
  readonly topkIdx: Tensor<'i64'>;
  /** [T, K] */
  readonly topkWeights: Tensor<'f32'>;
  /** With routing 'gate', where that is part of each pass: computes topkIdx and topkWeights anew from x. */
  readonly route: (() => void) | undefined;
  readonly experts: LocalExperts;
  /** [T, H] */
  readonly reference: Float32Array | undefined;
}

export interface ShareOptions {
  readonly engine: MoeEngine;
  readonly file: SafetensorsFile;
  readonly block: MoeBlock;
  readonly rank: number;
  readonly ranks: number;
}

/** Reads no more of the file than this rank needs. Fails with WL_FILE_FORMAT if expert ids are out of range or repeat. */
export async function readBlockShare(device: MoeDevice, options: ShareOptions): Promise<BlockShare> {
  const { file, block, rank, ranks } = options;
  const mine = expertShare(block.experts, rank, ranks);
  const tokens = tokenShare(block.tokens, rank, ranks);
  const end = tokens.first + tokens.count;
  const xValues = await file.read(blockTensors.x, 'bf16', tokens.first, end);
  const x = await device.tensor('bf16', [tokens.count, block.hidden], xValues);
  const routing =
    block.routing === 'file'
      ? await readChoices(device, { ...options, tokens })
      : await options.engine.openGate({ block, x, xValues, gate: await file.read(blockTensors.gate, 'bf16') });
  const reference = block.hasReference ? await file.read(blockTensors.reference, 'f32', tokens.first, end) : undefined;
  const experts = await readExperts(
    device,
    options,
    Array.from({ length: mine.count }, (_, index) => mine.first + index),
  );
  return {
    tokens,
    x,
    topkIdx: routing.topkIdx,
    topkWeights: routing.topkWeights,
    route: routing.route,
    experts,
    reference,
    [Symbol.dispose]() {
      x.dispose();
      routing[Symbol.dispose]();
      experts[Symbol.dispose]();
    },
  };
}

type TokenOptions = ShareOptions & { readonly tokens: Share };

async function readChoices(device: MoeDevice, options: TokenOptions): Promise<Routing> {
  const { file, block, tokens } = options;
  const shape = [tokens.count, block.topk];
  const ids = await readIds(options);
  const weights = await file.read(blockTensors.topkWeights, 'f32', tokens.first, tokens.first + tokens.count);
  const topkIdx = await device.tensor('i64', shape, ids);
  const topkWeights = await device.tensor('f32', shape, weights);
  const release = (): void => {
    topkIdx.dispose();
    topkWeights.dispose();
  };
  return { topkIdx, topkWeights, route: undefined, [Symbol.dispose]: release };
}

async function readIds({ file, block, tokens }: TokenOptions): Promise<BigInt64Array> {
  const { topkIdx: name } = blockTensors;
  const end = tokens.first + tokens.count;
  const isShort = file.entry(name).dtype === 'I32';
  const ids = isShort
    ? BigInt64Array.from(await file.read(name, 'i32', tokens.first, end), BigInt)
    : await file.read(name, 'i64', tokens.first, end);
  for (let token = 0; token < tokens.count; token++) {
    const row = ids.subarray(token * block.topk, (token + 1) * block.topk);
    const seen = new Set<bigint>();
    for (const id of row) {
      const isBad = id < -1n || id >= BigInt(block.experts) || seen.has(id);
      if (isBad) {
        const what = seen.has(id) ? `expert ${id} twice` : `expert ${id}, expected -1 to ${block.experts - 1}`;
        throw formatError(file.path, `topk_idx of token ${tokens.first + token} has ${what}`, { token, id });
      }
      if (id >= 0n) seen.add(id);
    }
  }
  return ids;
}

/** The experts with these numbers, in this order. */
export async function readExperts(
  device: MoeDevice,
  { file, block, engine }: Pick<ShareOptions, 'file' | 'block' | 'engine'>,
  ids: readonly number[],
): Promise<LocalExperts> {
  const { hidden, intermediate } = block;
  const gateUp = await readRows(file, blockTensors.gateUp, { ids, rowElements: 2 * intermediate * hidden });
  const down = await readRows(file, blockTensors.down, { ids, rowElements: hidden * intermediate });
  return engine.createExperts({
    gateUp: await device.tensor('bf16', [ids.length, 2 * intermediate, hidden], gateUp),
    down: await device.tensor('bf16', [ids.length, hidden, intermediate], down),
  });
}

async function readRows(
  file: SafetensorsFile,
  name: string,
  { ids, rowElements }: { readonly ids: readonly number[]; readonly rowElements: number },
): Promise<Uint16Array> {
  const values = new Uint16Array(ids.length * rowElements);
  for (const [at, id] of ids.entries()) values.set(await file.read(name, 'bf16', id, id + 1), at * rowElements);
  return values;
}
