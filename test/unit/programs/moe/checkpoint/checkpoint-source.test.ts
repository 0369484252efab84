import assert from 'node:assert/strict';
import { join } from 'node:path';
import test from 'node:test';
import { CpuDevice, fromBf16 } from 'weftline';
import { readBlockShare } from '#lib/programs/moe/block-share.js';
import { createCpuMoeEngine } from '#lib/programs/moe/cpu-moe-engine.js';
import { CheckpointSource } from '#lib/programs/moe/checkpoint/checkpoint-source.js';
import { ModelFolder } from '#lib/programs/moe/checkpoint/model-folder.js';
import { findModelLayers } from '#lib/programs/moe/checkpoint/architectures.js';
import { smallModels } from '../../../../support/checkpoints/models.ts';
import { writeCheckpoint } from '../../../../support/checkpoints/write-checkpoint.ts';
import { folderUntilExit } from '../../../../support/folder-until-exit.ts';

const work = folderUntilExit('weftline-checkpoint-');
const device = await CpuDevice.create();
const engine = createCpuMoeEngine(device);

const norm = (values: Float64Array): number => Math.hypot(...values);

const models = [
  ...Object.entries(smallModels).map(([name, model]) => ({ name, model, scales: 'F32' }) as const),
  ...(['BF16', 'F16', 'F8_E8M0'] as const).map((scales) => ({
    name: `deepseekV3 with scales in ${scales}`,
    model: smallModels.deepseekV3,
    scales,
  })),
];
for (const { name, model, scales } of models) {
  test(`${name}: choices, weights and output of each layer are those of the slow reference, on 1 and 4 ranks`, async () => {
    const tokens = 30;
    const {
      folder: path,
      input,
      expected,
    } = await writeCheckpoint(join(work, name), model, { tokens, seed: 7, scales });
    await using folder = await ModelFolder.open(path);
    assert.deepEqual(findModelLayers(folder).numbers, model.moeLayers);
    for (const [layer, { choices, output }] of expected) {
      await using source = await CheckpointSource.open(folder, { layer, input });
      const { topk, experts, hidden } = source.block;
      using whole = await readBlockShare(device, { engine, source, rank: 0, ranks: 1 });
      const ids = [...whole.topkIdx.view()].map(Number);
      assert.deepEqual(
        ids,
        choices.flatMap((chosen) => chosen.map(({ expert }) => expert)),
      );
      for (const [at, { weight }] of choices.flat().entries()) {
        assert.ok(Math.abs(whole.topkWeights.view()[at]! - weight) < 1e-5 * weight, `weight ${at} of layer ${layer}`);
      }

      const sums = new Float64Array(tokens * hidden);
      for (let rank = 0; rank < 4; rank++) {
        using share = await readBlockShare(device, { engine, source, rank, ranks: 4 });
        const mine = experts / 4;
        const local = BigInt64Array.from(ids, (id) => {
          const own = id - rank * mine;
          return own >= 0 && own < mine ? BigInt(own) : -1n;
        });
        using topkIdx = await device.tensor('i64', [tokens, topk], local);
        using out = device.empty('bf16', [tokens, hidden]);
        share.experts.forwardTokens({ ...whole, topkIdx, rowsPerExpert: [] }, out);
        for (const [at, bits] of out.view().entries()) sums[at] = sums[at]! + fromBf16(bits);
      }
      if (whole.shared !== undefined) {
        using out = device.empty('bf16', [tokens, hidden]);
        whole.shared.experts.forwardExperts({ ...whole.shared, x: whole.x, rowsPerExpert: [tokens] }, out);
        for (const [at, bits] of out.view().entries()) sums[at] = sums[at]! + fromBf16(bits);
      }
      const error = norm(sums.map((sum, at) => sum - output[at]!)) / norm(output);
      assert.ok(error < 6e-3, `error ${error} of layer ${layer}`);
    }
  });
}
