// Sparse all-reduces of tensors on GPUs, by the programs that check them on CPUs: random calls against the reference, repeats,
// ranks that differ and ranks that die; the kernels alone, a flag that a kernel polls; the benchmark.
// WEFTLINE_TEST_COLLECTIVES above 1: as many times the cases.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { type CudaDevice } from 'weftline';
import { SparseAllReduce } from 'weftline/collectives';
import { referenceSparseSum } from 'weftline/reference';
import { join } from 'weftline/world';
import { SPARSE_NO_BLOCK } from '#lib/abi/collectives.js';
import { CudaBlockWork } from '#lib/collectives/sparse/cuda-work.js';
import { noCall } from '#lib/collectives/sparse/sparse-call.js';
import { infinityOf, strideOf } from '#lib/collectives/sparse/slot-shape.js';
import type { SparseBenchReport } from '#lib/programs/bench/sparse/sparse-bench.js';
import { resultOf, runRanks } from '../local/support/run-ranks.ts';
import { testSeed } from '../support/seed.ts';
import { cacheFolder, gpuTest, noGpu } from './support/gpu.ts';
import { settingsTable } from '#lib/settings/settings.js';

const factor = Number(process.env['WEFTLINE_TEST_COLLECTIVES'] ?? 1);
const property = new URL('../local/ranks/sparse-property.js', import.meta.url);
const repeating = new URL('../local/ranks/sparse-repeats.js', import.meta.url);
const failures = new URL('../local/ranks/sparse-failures.js', import.meta.url);
const killed = new URL('../local/ranks/sparse-killed.js', import.meta.url);
const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };

gpuTest('marks, numbers and next blocks of every shape are those of a slow search', async (device) => {
  for (const [shape, count] of [
    [{ blockSize: 256, lanes: 256, slots: 16 }, 5_000_000],
    [{ blockSize: 64, lanes: 1, slots: 1 }, 1_000_000],
    [{ blockSize: 64, lanes: 3, slots: 5 }, 64 * 1024 * 3 + 1],
    [{ blockSize: 1024, lanes: 7, slots: 3 }, 300_000],
    [{ blockSize: 65_536, lanes: 1, slots: 2 }, 1_000_003],
  ] as const) {
    const blocks = Math.ceil(count / shape.blockSize);
    for (const density of [0, 0.01, 0.5, 1]) {
      const values = new Float32Array(count);
      for (let block = 0; block < blocks; block++) {
        // The last element of a block alone, or an element that is not above the threshold.
        const last = Math.min(count, (block + 1) * shape.blockSize) - 1;
        values[last] = Math.random() < density ? -2 : 1;
      }
      using input = await device.tensor('f32', [count], values);
      using output = device.empty('f32', [count]);
      device.setBytes(output, 7);
      const work = await CudaBlockWork.create(device, shape);
      const index = work.reserve(blocks);
      const call = { ...noCall, count, input: input.address, output: output.address, threshold: 1 };
      work.begin(call, blocks);
      work.mark();
      work.join();
      const cleared = await output.toHost();
      const stride = strideOf(shape);
      const ahead = Array.from({ length: stride }, (_, lane) => infinityOf(shape) + lane);
      let found = 0;
      for (let block = 0; block < blocks; block++) {
        const last = Math.min(count, (block + 1) * shape.blockSize) - 1;
        const counts = values[last] === -2;
        assert.equal(index.numbers[block], counts ? found : SPARSE_NO_BLOCK, `block ${block}`);
        assert.equal(cleared[last] === 0, !counts);
        assert.equal(cleared[block * shape.blockSize] === 0, !counts);
        if (counts) found++;
      }
      assert.equal(index.found[0], found);
      for (let block = blocks - 1; block >= 0; block--) {
        if (index.nexts[block] !== ahead[block % stride]) assert.fail(`next of ${block}: ${index.nexts[block]}`);
        if (index.numbers[block] !== SPARSE_NO_BLOCK) ahead[block % stride] = block;
      }
      await work.close();
    }
  }
});

for (const [ranks, hosts, cases] of [
  [6, '1', 4],
  [6, '2', 1],
] as const) {
  test(
    `random calls of 1 to 4 workers that share GPUs agree with the reference; hosts ${hosts}`,
    { skip: noGpu },
    async () => {
      const seed = String(testSeed());
      const args = [String(cases * factor), seed, '300000'];
      const options = { args, env: { ...env, WEFTLINE_HOSTS: hosts }, timeoutMs: 200_000 * factor };
      const { exitCode, transcript } = await runRanks(ranks, property, options);
      assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
    },
  );
}

for (const [hosts, repeats] of [
  ['1', 50],
  ['2', 10],
] as const) {
  test(
    `${repeats} repeats with workers that are late give the same bytes; hosts ${hosts}`,
    { skip: noGpu },
    async () => {
      const options = { args: [String(repeats * factor)], env: { ...env, WEFTLINE_HOSTS: hosts }, timeoutMs: 120_000 };
      const { exitCode, transcript } = await runRanks(4, repeating, options);
      assert.equal(exitCode, 0, transcript);
    },
  );
}

for (const [shape, count] of [
  ['one aggregator', 4],
  ['direct', 3],
] as const)
  test(`a worker that differs is named to every rank; ${shape}`, { skip: noGpu }, async () => {
    const options = { args: [shape], env, timeoutMs: 120_000 };
    const { exitCode, ranks, transcript } = await runRanks(count, failures, options);
    assert.equal(exitCode, 0, transcript);
    for (const [rank, output] of ranks.entries()) {
      const told = resultOf(output) as Readonly<Record<string, readonly [first: string, next: string]>>;
      const heard = (name: string, ...parts: RegExp[]): void => {
        const [first, next] = told[name]!;
        for (const part of parts) assert.match(first === 'ok' && rank === 1 ? next : first, part, transcript);
        assert.match(next, /^WL_/, transcript);
      };
      heard('another count', /WL_CONFIG_MISMATCH/, /allReduce of 5 f32 on rank 0/, /allReduce of 100000 f32 on rank 1/);
      heard('another dtype', /WL_CONFIG_MISMATCH/, /allReduce of 5 f32 on rank 0/, /allReduce of 5 i32 on rank 1/);
      heard('a call less', /WL_TIMEOUT/, /Ranks? (\d, )*1\b[\d, ]* did not arrive within 400 ms/);
      if (rank !== 1) heard('leaves', /WL_PEER_LOST/, /[Rr]ank 1/);
      assert.equal(told['a wrong argument']![0], 'ok', transcript);
    }
  });

for (const [what, victim, hosts, shape] of [
  ['before', 0, '1', 'one aggregator'],
  ['within', 1, '1', 'one aggregator'],
  ['within', 3, '1', 'one aggregator'],
  ['within', 1, '2', 'one aggregator'],
  ['within', 3, '2', 'one aggregator'],
  ['before', 2, '1', 'direct'],
  ['within', 1, '1', 'direct'],
] as const) {
  test(
    `rank ${victim} is killed ${what} a call, and every other rank is told; ${shape}, hosts ${hosts}`,
    { skip: noGpu },
    async () => {
      const args = [what, String(victim), shape];
      const options = { args, env: { ...env, WEFTLINE_HOSTS: hosts }, graceMs: 10_000 };
      const { ranks, transcript } = await runRanks(shape === 'direct' ? 3 : 4, killed, options);
      assert.equal(ranks[victim]?.signal, 'SIGKILL', transcript);
      for (const [rank, output] of ranks.entries()) {
        if (rank === victim) continue;
        const { code, message } = resultOf(output) as { readonly code: string; readonly message: string };
        assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(code), transcript);
        assert.match(message, new RegExp(`[Rr]anks? ([0-9, ]*\\b)?${victim}\\b`), transcript);
      }
    },
  );
}

test('tensors of several pieces are summed directly as by the dense call', { skip: noGpu }, () => {
  const flags = ['--workers', '3', '--aggregators', '0', '--elements', '20000003', '--rounds', '1', '--warmups', '0'];
  const words = [main, 'bench', 'sparse', '--device', 'cuda', ...flags, '--density', '0,0.1,1', '--json', '-'];
  const options = { encoding: 'utf8', timeout: 100_000, env: { ...process.env, ...env } } as const;
  for (const dtype of ['f32', 'bf16']) {
    const { status, stdout, stderr } = spawnSync(process.execPath, [...words, '--dtype', dtype], options);
    assert.equal(status, 0, stderr);
    const report = JSON.parse(stdout) as SparseBenchReport;
    assert.deepEqual(
      report.rows.map(({ wrong }) => wrong),
      [0, 0, 0],
    );
  }
});

gpuTest('a kernel that polls the flag finds the sums of the parts that it tells of', async (device) => {
  await using world = await join();
  await using reducer = await SparseAllReduce.create(world, device, { blockSize: 64, slots: 4 });
  const [parts, elements] = [20, 6400];
  const count = parts * elements;
  const values = Float32Array.from({ length: count }, (_, at) => (at % 640 < 64 ? 1 + at / 1000 : 0));
  using input = await device.tensor('f32', [count], values);
  using output = device.empty('f32', [count]);
  using flag = await device.tensor('i32', [1], Int32Array.of(0));
  using seen = device.empty('f32', [count]);
  const { copyParts } = await device.compile({
    source: POLLING,
    kernels: { copyParts: { flag: 'ptr', from: 'ptr', to: 'ptr', parts: 'u32', elements: 'u32' } },
  });
  device.setBytes(seen, 0);
  await device.stream.idle();
  using stream = device.createStream();
  const plan = copyParts.plan({ grid: 1, block: 256 });
  plan.arguments.set('flag', flag.address);
  plan.arguments.set('from', output.address);
  plan.arguments.set('to', seen.address);
  plan.arguments.set('parts', parts);
  plan.arguments.set('elements', elements);
  plan.launch(stream);
  const traffic = await reducer.allReduce({ input, output, completion: { flag, elements } });
  await stream.idle();
  const expected = referenceSparseSum('f32', [values], { blockSize: 64 });
  assert.deepEqual(Buffer.from((await seen.toHost()).buffer), Buffer.from(expected.buffer));
  assert.equal((await flag.toHost())[0], parts);
  assert.equal(traffic.ownBlocks, count / 640);
});

/** Copies each part as soon as the flag tells that it is done. */
const POLLING = `
#include "weftline/weftline.cuh"
#include "weftline/memory-order.cuh"
extern "C" __global__ void copyParts(const unsigned* flag, const float* from, float* to, unsigned parts, unsigned elements) {
  for (unsigned part = 0; part < parts; ++part) {
    if (threadIdx.x == 0) {
      const long long begin = clock64();
      while (weftline::loadAcquireSystem(flag) <= part && clock64() - begin < 20000000000ll) __nanosleep(1000);
    }
    __syncthreads();
    for (unsigned at = threadIdx.x; at < elements; at += blockDim.x) {
      to[part * elements + at] = __ldcg(from + part * elements + at);
    }
  }
}
`;

gpuTest('a call cannot be recorded in a graph, says so and harms nothing', async (device) => {
  await using world = await join();
  await using reducer = await SparseAllReduce.create(world, device);
  using output = await device.tensor('i32', [256], new Int32Array(256).fill(3));
  const recorded = device.capture(async () => void (await reducer.allReduce({ output })));
  await assert.rejects(recorded, { code: 'WL_UNSUPPORTED', message: /Cannot record a sparse allReduce/ });
  await reducer.allReduce({ output });
  assert.equal((await output.toHost())[0], 3);
});

gpuTest('work that was enqueued before and after a call finds what is in its order', async (device: CudaDevice) => {
  await using world = await join();
  await using reducer = await SparseAllReduce.create(world, device);
  using tensor = device.empty('i32', [100_000]);
  for (let turn = 1; turn < 20; turn++) {
    device.setBytes(tensor, turn);
    await reducer.allReduce({ output: tensor });
    device.setBytes(tensor.slice(0, 256), 99);
    const values = await tensor.toHost();
    assert.equal(values[0], 99 * 0x01010101);
    assert.equal(values[256], turn * 0x01010101);
    assert.equal(values[99_999], turn * 0x01010101);
  }
});

test('weftline bench sparse --device cuda compares every result', { skip: noGpu }, () => {
  const flags = ['--workers', '2', '--elements', '300001', '--rounds', '2', '--warmups', '0', '--slots', '2'];
  const words = [main, 'bench', 'sparse', '--device', 'cuda', ...flags, '--density', '0,0.1,1', '--json', '-'];
  const options = { encoding: 'utf8', timeout: 60_000, env: { ...process.env, ...env } } as const;
  for (const [hosts, aggregators] of [
    ['1', '1'],
    ['2', '1'],
    // Directly.
    ['1', '0'],
  ] as const) {
    const more = ['--hosts', hosts, '--aggregators', aggregators];
    const { status, stdout, stderr } = spawnSync(process.execPath, [...words, ...more], options);
    assert.equal(status, 0, stderr);
    const report = JSON.parse(stdout) as SparseBenchReport;
    assert.deepEqual(
      report.rows.map(({ wrong }) => wrong),
      [0, 0, 0],
    );
    assert.ok(report.gpu !== undefined && report.bitmap.read > 0);
  }
});
