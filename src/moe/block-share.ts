// What one rank reads of a block file: its tokens with their choices, its experts, and its part of the reference.
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { Tensor } from '../device/tensor.ts';
import { LocalExperts } from './experts.ts';
import { blockTensors, type MoeBlock } from './moe-block.ts';
import { routeTopk } from './router.ts';
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
  /** With routing 'gate': computes topkIdx and topkWeights anew from x. */
  readonly route: (() => void) | undefined;
  readonly experts: LocalExperts;
  /** [T, H] */
  readonly reference: Float32Array | undefined;
}

export interface ShareOptions {
  readonly file: SafetensorsFile;
  readonly block: MoeBlock;
  readonly rank: number;
  readonly ranks: number;
}

/** Reads no more of the file than this rank needs. Fails with WL_FILE_FORMAT if expert ids are out of range or repeat. */
export async function readBlockShare(device: CpuDevice, options: ShareOptions): Promise<BlockShare> {
  const { file, block, rank, ranks } = options;
  const mine = expertShare(block.experts, rank, ranks);
  const tokens = tokenShare(block.tokens, rank, ranks);
  const end = tokens.first + tokens.count;
  const x = await device.tensor(
    'bf16',
    [tokens.count, block.hidden],
    await file.read(blockTensors.x, 'bf16', tokens.first, end),
  );
  const choices = await readChoices(device, { ...options, x, tokens });
  const reference = block.hasReference ? await file.read(blockTensors.reference, 'f32', tokens.first, end) : undefined;
  const experts = await readExperts(device, options, mine);
  return {
    tokens,
    x,
    ...choices,
    experts,
    reference,
    [Symbol.dispose]() {
      for (const tensor of [x, choices.topkIdx, choices.topkWeights, ...choices.scratch]) tensor.dispose();
      experts[Symbol.dispose]();
    },
  };
}

type TokenOptions = ShareOptions & { readonly x: Tensor<'bf16'>; readonly tokens: Share };

async function readChoices(
  device: CpuDevice,
  options: TokenOptions,
): Promise<Pick<BlockShare, 'topkIdx' | 'topkWeights' | 'route'> & { readonly scratch: readonly Tensor[] }> {
  const { file, block, tokens } = options;
  const shape = [tokens.count, block.topk];
  if (block.routing === 'file') {
    const end = tokens.first + tokens.count;
    const ids = await readIds(options);
    const weights = await file.read(blockTensors.topkWeights, 'f32', tokens.first, end);
    const topkIdx = await device.tensor('i64', shape, ids);
    return { topkIdx, topkWeights: await device.tensor('f32', shape, weights), route: undefined, scratch: [] };
  }
  const topkIdx = device.empty('i64', shape);
  const topkWeights = device.empty('f32', shape);
  const gate = await device.tensor('bf16', [block.experts, block.hidden], await file.read(blockTensors.gate, 'bf16'));
  const logits = device.empty('f32', [tokens.count, block.experts]);
  const route = (): void => {
    const { x } = options;
    const { kernels } = device;
    kernels.matmul(logits.address, x.address, 0, gate.address, tokens.count, block.experts, block.hidden);
    const { ids, weights } = routeTopk(logits.view(), block);
    topkIdx.view().set(ids);
    topkWeights.view().set(weights);
  };
  route();
  return { topkIdx, topkWeights, route, scratch: [gate, logits] };
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
        const what = seen.has(id) ? `expert ${id} twice` : `expert ${id}, allowed is -1 to ${block.experts - 1}`;
        throw formatError(file.path, `topk_idx of token ${tokens.first + token} has ${what}`, { token, id });
      }
      if (id >= 0n) seen.add(id);
    }
  }
  return ids;
}

async function readExperts(device: CpuDevice, { file, block }: ShareOptions, mine: Share): Promise<LocalExperts> {
  const { hidden, intermediate } = block;
  const end = mine.first + mine.count;
  const gateUp = await file.read(blockTensors.gateUp, 'bf16', mine.first, end);
  const down = await file.read(blockTensors.down, 'bf16', mine.first, end);
  return new LocalExperts(device, {
    gateUp: await device.tensor('bf16', [mine.count, 2 * intermediate, hidden], gateUp),
    down: await device.tensor('bf16', [mine.count, hidden, intermediate], down),
  });
}
