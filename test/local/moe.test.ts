import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import { fromBf16, toBf16 } from 'weftline';
import type { MoeReport } from '#lib/programs/moe/moe-job.js';
import { referenceMoeBlock } from '#lib/programs/moe/example-block.js';
import { SafetensorsFile, writeSafetensors } from '#lib/programs/moe/safetensors-file.js';
import { isWhole, sampled } from '../support/extent.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const example = fileURLToPath(new URL('../../../examples/data/qwen3-moe-block.safetensors', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'weftline-moe-'));
after(() => rmSync(folder, { recursive: true }));

interface Run {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** On the CPU, whatever GPUs this machine has, unless the arguments say otherwise; none of them is visible. */
function moe(...args: readonly string[]): Run {
  const env = { ...process.env, WEFTLINE_DEVICE: 'cpu', CUDA_VISIBLE_DEVICES: '-1' };
  return spawnSync(process.execPath, [main, 'moe', ...args], { encoding: 'utf8', timeout: 600_000, env });
}

/** Runs with --json and returns the report; fails the test when the command fails. */
function reportOf(...args: readonly string[]): MoeReport {
  const json = join(folder, 'report.json');
  const { status, stdout, stderr } = moe(...args, '--json', json, '--repeat', '1');
  assert.equal(status, 0, stdout + stderr);
  return JSON.parse(readFileSync(json, 'utf8')) as MoeReport;
}

test('without a file it makes a small block in the cache folder, and keeps it', (context) => {
  const cache = mkdtempSync(join(tmpdir(), 'weftline-moe-cache-'));
  context.after(() => rmSync(cache, { recursive: true }));
  for (let time = 0; time < 2; time++) {
    const { status, stdout, stderr } = spawnSync(process.execPath, [main, 'moe', '--ranks', '2', '--iterations', '1'], {
      encoding: 'utf8',
      timeout: 600_000,
      env: { ...process.env, WEFTLINE_DEVICE: 'cpu', WEFTLINE_CACHE: cache },
    });
    assert.equal(status, 0, stdout + stderr);
    assert.match(stdout, /^PASSED/m);
    assert.equal(readdirSync(cache).length, 1);
  }
});

interface SmallBlock {
  readonly path: string;
  readonly expected: Float64Array;
}

const small = { hidden: 24, intermediate: 16, topk: 2, experts: 8 };

/** A block of few tokens with expert ids, and what it gives. */
async function smallBlock(
  tokens: number,
  {
    choose,
    change,
  }: {
    /** Has the tokens choose otherwise. */
    readonly choose?: (ids: BigInt64Array) => void;
    /** Spoils the tensors before they are written. */
    readonly change?: (values: { readonly ids: BigInt64Array; readonly reference: Float32Array }) => void;
  } = {},
): Promise<SmallBlock> {
  const { hidden, intermediate, topk, experts } = small;
  let state = tokens;
  const random = (count: number): Uint16Array =>
    Uint16Array.from({ length: count }, () => {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
      return toBf16(state / 2 ** 32);
    });
  const x = random(tokens * hidden);
  const gateUp = random(experts * 2 * intermediate * hidden);
  const down = random(experts * hidden * intermediate);
  const ids = BigInt64Array.from({ length: tokens * topk }, (_, at) =>
    at % 5 === 4 ? -1n : BigInt((at * 3) % experts),
  );
  choose?.(ids);
  const topkWeights = Float32Array.from(ids, (id, at) => (id < 0n ? 0 : 0.3 + (at % 3) / 4));
  const expected = referenceMoeBlock({ x, topkIdx: ids, topkWeights, gateUp, down }, small);
  const reference = Float32Array.from(expected);
  change?.({ ids, reference });
  const path = join(folder, `small-${tokens}.safetensors`);
  const tensors = {
    x: { dtype: 'BF16', shape: [tokens, hidden] },
    topk_idx: { dtype: 'I64', shape: [tokens, topk] },
    topk_weights: { dtype: 'F32', shape: [tokens, topk] },
    'experts.gate_up_proj': { dtype: 'BF16', shape: [experts, 2 * intermediate, hidden] },
    'experts.down_proj': { dtype: 'BF16', shape: [experts, hidden, intermediate] },
    output_f32: { dtype: 'F32', shape: [tokens, hidden] },
  } as const;
  const values = { x, topk_idx: ids, topk_weights: topkWeights, output_f32: reference };
  await writeSafetensors({ path, tensors }, { ...values, 'experts.gate_up_proj': gateUp, 'experts.down_proj': down });
  return { path, expected };
}

async function outputError(path: string, expected: ArrayLike<number>): Promise<number> {
  await using file = await SafetensorsFile.open(path);
  const output = await file.read('output', 'bf16');
  assert.equal(output.length, expected.length);
  let difference = 0;
  let size = 0;
  for (const [index, pattern] of output.entries()) {
    difference += (fromBf16(pattern) - (expected[index] as number)) ** 2;
    size += (expected[index] as number) ** 2;
  }
  return Math.sqrt(difference / size);
}

for (const [layer, hosts] of [
  ['all2all', '3+1'],
  ...(isWhole
    ? ([
        ['buffer', '2'],
        ['buffer', '4'],
        ['all2all', '2'],
        ['buffer', '3+1'],
        ['all2all', '4'],
      ] as const)
    : []),
] as const) {
  test(`the example by ${layer} on 4 ranks of ${hosts} hosts has the error that it has on one`, () => {
    const { status, stdout, stderr } = moe(example, '--hosts', hosts, '--dispatcher', layer, '--repeat', '1');
    assert.equal(status, 0, stderr);
    // Sums of two rows that another host has are rounded once more.
    assert.match(stdout, /PASSED: error (2\.[89]\d|3\.0\d)e-3/);
  });
}

test('weftline moe runs the example on 4 ranks, prints tables of at most 100 columns and writes the output', async () => {
  const out = join(folder, 'output.safetensors');
  const { status, stdout, stderr } = moe(example, '--out', out, '--repeat', '1');
  assert.equal(status, 0, stderr);
  assert.match(stdout, /PASSED: error 2\.\d\de-3/);
  assert.match(stdout, /860 \(expert 6\)/);
  for (const line of stdout.split('\n').filter((text) => !text.includes(folder) && !text.includes(example))) {
    assert.ok(line.length <= 100, line);
  }
  await using file = await SafetensorsFile.open(example);
  assert.ok((await outputError(out, await file.read('output_f32', 'f32'))) < 4e-3);
  assert.deepEqual(readdirSync(folder), ['output.safetensors']);
});

for (const layer of isWhole ? ['buffer', 'all2all'] : ['buffer']) {
  test(`f32 sums between hosts give the error of one host, by ${layer}`, () => {
    const args = [example, '--hosts', '3+1', '--dispatcher', layer, '--combine-precision', 'f32'];
    const report = reportOf(...args);
    const oneHost = reportOf(example, '--dispatcher', layer, '--combine-precision', 'f32');
    const [error, expected] = [report.check!.error, oneHost.check!.error];
    assert.ok(Math.abs(error - expected) < 1e-5, `${error} instead of about ${expected}`);
  });
}

test('weftline moe with layer all2all counts a row per token and expert', () => {
  const report = reportOf(example, '-n', '2', '--dispatcher', 'all2all');
  assert.ok((report.check?.error ?? 1) < 4e-3);
  assert.equal(
    report.load.ranks.reduce((sum, rank) => sum + rank.received, 0),
    1536 * 4,
  );
  assert.deepEqual(
    report.phases.map((phase) => phase.name),
    ['dispatch', 'experts', 'combine'],
  );
});

/** Rows that the most loaded rank computes, by those of an average one, for the example on 4 ranks. */
function skew({ ranks }: MoeReport['load']): number {
  return Math.max(...ranks.map(({ expertRows }) => expertRows)) / ((1536 * 4) / ranks.length);
}

for (const [layer, hosts, difference] of [
  // A token's rows are added up by rank before they are rounded, and its experts are on other ranks than before.
  ...(isWhole ? ([['buffer', '1', 4e-3]] as const) : []),
  // Each choice is a row of its own, added in the order of choices: where the expert computes makes no difference.
  ['all2all', '1', 0],
  ...(isWhole ? ([['all2all', '3+1', 4e-3]] as const) : []),
] as const) {
  test(`8 redundant experts of the example's busy experts even out the load, by ${layer} on 4 ranks of hosts ${hosts}`, () => {
    const report = reportOf(example, '--dispatcher', layer, '--hosts', hosts, '--redundant-experts', '8');
    assert.ok(report.redundantExperts);
    assert.equal(skew(report.redundantExperts.without.load).toFixed(2), '1.60');
    // Between hosts a copy on the own host is preferred, however busy it is.
    assert.ok(skew(report.load) <= (hosts === '3+1' ? 1.25 : 1.1), `${skew(report.load)}`);
    assert.equal(report.load.experts.length, 40);
    assert.ok(report.redundantExperts.check.error <= difference, `${report.redundantExperts.check.error}`);
    assert.ok((report.check?.error ?? 1) < 4e-3);
  });
}

test('weftline moe with fp8 rows stays within 5e-2 and moves about half', () => {
  const report = reportOf(example, '-n', '2', '--dtype', 'fp8');
  assert.ok((report.check?.error ?? 1) < 5e-2);
  const [, dispatch] = report.phases;
  assert.equal(dispatch?.bytes, dispatch === undefined ? 0 : dispatch.rows * (256 + 8));
});

test('weftline moe routes by the gate when the file has no expert ids', async () => {
  await using file = await SafetensorsFile.open(example);
  const path = join(folder, 'gate.safetensors');
  const names = [...file.tensors.keys()].filter((name) => !name.startsWith('topk_') && name !== 'output_bf16');
  const values: Record<string, ArrayBufferView> = {};
  for (const name of names) values[name] = await file.read(name, name === 'output_f32' ? 'f32' : 'bf16');
  const tensors = Object.fromEntries(names.map((name) => [name, file.entry(name)]));
  await writeSafetensors({ path, tensors, metadata: file.metadata }, values);
  const report = reportOf(path, '-n', '2');
  assert.equal(report.phases[0]?.name, 'route');
  assert.ok((report.check?.error ?? 1) < 4e-3);
});

for (const [tokens, ranks, layer] of [
  ...(isWhole ? ([[9, 4, 'buffer']] as const) : []),
  [2, 4, 'buffer'],
  ...(isWhole ? ([[3, 8, 'all2all']] as const) : []),
] as const) {
  test(`weftline moe: ${tokens} tokens on ${ranks} ranks with layer ${layer}`, async () => {
    const { path, expected } = await smallBlock(tokens);
    const out = join(folder, 'small-output.safetensors');
    const report = reportOf(path, '-n', String(ranks), '--dispatcher', layer, '--out', out);
    assert.equal(report.check?.passed, true);
    assert.ok((await outputError(out, expected)) < 6e-3);
  });
}

for (const layer of ['buffer', 'all2all']) {
  test(`weftline moe: tokens that choose an expert more than once, with layer ${layer}`, async () => {
    const { path, expected } = await smallBlock(12, { choose: (ids) => ids.set([3n, 3n, 5n, 5n], 4) });
    const out = join(folder, 'small-output.safetensors');
    const report = reportOf(path, '-n', '2', '--dispatcher', layer, '--out', out);
    assert.equal(report.check?.passed, true);
    assert.ok((await outputError(out, expected)) < 6e-3);
  });
}

test('weftline moe exits non-zero with WL_CHECK when the output is not the reference', async () => {
  const { path } = await smallBlock(10, { change: ({ reference }) => reference.fill(0.5) });
  const { status, stdout, stderr } = moe(path, '-n', '2', '--repeat', '1');
  assert.notEqual(status, 0);
  assert.match(stdout, /FAILED: error/);
  assert.match(stderr, /WL_CHECK/);
});

test('weftline moe takes the CPU by itself where there is no GPU, and says why', () => {
  const { device, product } = reportOf(example, '-n', '2', '--device', 'auto');
  assert.equal(device.kind, 'cpu');
  assert.match(device.reason, /^rank 0 found no GPU: (no driver library \(|cuInit failed)/);
  assert.equal(product, 'CPU kernels');
});

test('weftline moe --device cuda fails once for all ranks where there is no GPU', () => {
  const { status, stdout, stderr } = moe(example, '-n', '4', '--device', 'cuda');
  assert.notEqual(status, 0);
  assert.equal(stdout, '');
  const errors = stderr.split('\n').filter((line) => line.includes('WL_'));
  assert.equal(errors.length, 1, stderr);
  assert.match(errors[0] ?? '', /WL_UNSUPPORTED: Cannot run on GPUs: rank 0 found no GPU: .*--device cpu/);
});

test('weftline moe names a token whose expert does not exist, whichever rank reads it', async () => {
  const { path } = await smallBlock(11, { change: ({ ids }) => ids.fill(99n, 20) });
  const { status, stderr } = moe(path, '-n', '4', '--repeat', '1', '--timeout', '200000');
  assert.notEqual(status, 0);
  assert.match(stderr, /topk_idx of token 10 has expert 99/);
});

test('weftline moe refuses what cannot work before any rank is started', () => {
  const wrong: readonly (readonly [args: readonly string[], words: RegExp])[] = [
    [[example, '-n', '3'], /WL_INVALID_ARGUMENT.*divisor of the 32 experts/],
    [[example, '--dispatcher', 'all2all', '--dtype', 'fp8'], /WL_INVALID_ARGUMENT.*--dtype/],
    [
      [example, '--redundant-experts', '7'],
      /WL_INVALID_ARGUMENT.*--redundant-experts: expected a multiple of the 4 ranks, such as 4 or 8, got 7/,
    ],
    [[example, '--topk', '3'], /WL_INVALID_ARGUMENT.*topk/],
    [[join(folder, 'missing')], /WL_FILE: /],
    [[main], /WL_FILE_FORMAT/],
    [[example, '--out', join(folder, 'no', 'where')], /WL_FILE: /],
  ];
  for (const [args, words] of sampled(wrong, 3)) {
    const { status, stdout, stderr } = moe(...args);
    assert.notEqual(status, 0);
    assert.equal(stdout, '');
    assert.match(stderr, words);
    assert.equal(stderr.trim().split('\n').length, 1, stderr);
  }
});
