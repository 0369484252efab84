import assert from 'node:assert/strict';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { CpuDevice, fromBf16 } from 'weftline';
import { type BlockShare, readBlockShare } from '#lib/programs/moe/block-share.js';
import { createCpuMoeEngine } from '#lib/programs/moe/cpu-moe-engine.js';
import { type BlockSource, FileBlockSource } from '#lib/programs/moe/block-source.js';
import { countRouting } from '#lib/programs/moe/measure-forward.js';
import { writeSafetensors } from '#lib/programs/moe/safetensors-file.js';
import { folderUntilExit } from '../../../support/folder-until-exit.ts';

const folder = folderUntilExit('weftline-block-share-');
const device = await CpuDevice.create();
const engine = createCpuMoeEngine(device);
const example = fileURLToPath(new URL('../../../../../examples/data/qwen3-moe-block.safetensors', import.meta.url));

async function share(path: string, rank: number, ranks: number): Promise<BlockShare> {
  await using source = await FileBlockSource.open(path);
  return await readBlockShare(device, { engine, source, rank, ranks });
}

test('one rank alone computes the example as the model did, from its own routing too', async () => {
  using whole = await share(example, 0, 1);
  const out = device.empty('bf16', [...whole.x.shape]);
  const { perExpert: rowsPerExpert } = countRouting(whole.topkIdx.view(), { topk: 4, experts: 32, ranks: 1 });
  whole.experts.forwardTokens({ ...whole, rowsPerExpert }, out);
  let difference = 0;
  let size = 0;
  for (const [index, wanted] of (whole.reference as Float32Array).entries()) {
    difference += (fromBf16(out.view()[index] as number) - wanted) ** 2;
    size += wanted ** 2;
  }
  assert.ok(Math.sqrt(difference / size) < 3e-3, `${Math.sqrt(difference / size)}`);

  await using file = await FileBlockSource.open(example);
  const block = { ...file.block, routing: 'gate', normalize: true } as const;
  const source: BlockSource = {
    block,
    tokens: (start, end) => file.tokens(start, end),
    choices: (start, end) => file.choices(start, end),
    gate: () => file.gate(),
    reference: (start, end) => file.reference(start, end),
    experts: (...of) => file.experts(...of),
    sharedExpert: () => file.sharedExpert(),
    [Symbol.asyncDispose]: () => Promise.resolve(),
  };
  using routed = await readBlockShare(device, { engine, source, rank: 0, ranks: 1 });
  assert.deepEqual([...routed.topkIdx.view()], [...whole.topkIdx.view()]);
  for (const [index, weight] of routed.topkWeights.view().entries()) {
    assert.ok(Math.abs(weight - (whole.topkWeights.view()[index] as number)) < 1e-5);
  }
});

test('ranks read contiguous parts of tokens, choices and experts', async () => {
  using whole = await share(example, 0, 1);
  using last = await share(example, 15, 16);
  assert.deepEqual(last.tokens, { first: 1440, count: 96 });
  assert.deepEqual([...last.x.view()], [...whole.x.view().subarray(1440 * 256)]);
  assert.deepEqual([...last.topkIdx.view()], [...whole.topkIdx.view().subarray(1440 * 4)]);
  assert.deepEqual([...last.topkWeights.view()], [...whole.topkWeights.view().subarray(1440 * 4)]);
  assert.equal(last.experts.count, 2);
  await assert.rejects(share(example, 0, 5), { code: 'WL_INVALID_ARGUMENT', message: /divisor of the 32 experts/ });
});

test('a rank without tokens, ids of 32 bits, and ids that are out of range', async () => {
  const path = join(folder, 'block.safetensors');
  const write = (ids: readonly number[]): Promise<void> =>
    writeSafetensors(
      {
        path,
        tensors: {
          x: { dtype: 'BF16', shape: [2, 8] },
          topk_idx: { dtype: 'I32', shape: [2, 2] },
          topk_weights: { dtype: 'F32', shape: [2, 2] },
          'experts.gate_up_proj': { dtype: 'BF16', shape: [4, 16, 8] },
          'experts.down_proj': { dtype: 'BF16', shape: [4, 8, 8] },
        },
      },
      { topk_idx: Int32Array.from(ids) },
    );
  await write([3, -1, -1, -1]);
  using none = await share(path, 3, 4);
  assert.deepEqual(none.x.shape, [0, 8]);
  using first = await share(path, 0, 4);
  assert.deepEqual([...first.topkIdx.view()], [3n, -1n]);
  for (const [ids, words] of [
    [[0, 1, 4, 0], /token 1 has expert 4, expected -1 to 3/],
    [[0, 1, 0, -2], /token 1 has expert -2/],
  ] as const) {
    await write(ids);
    await assert.rejects(share(path, 0, 1), { code: 'WL_FILE_FORMAT', message: words });
  }
});
