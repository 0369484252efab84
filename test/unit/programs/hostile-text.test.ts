// Files that others wrote, with escape sequences and line ends in each text and name: no report and no error shows them as they are.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { readTableFile } from '#lib/collectives/algorithm-table.js';
import { readBundle } from '#lib/device/cuda/jit/aot-bundle.js';
import { compareResults } from '#lib/programs/compare/compare-results.js';
import { CheckpointSource } from '#lib/programs/moe/checkpoint/checkpoint-source.js';
import { ModelFolder } from '#lib/programs/moe/checkpoint/model-folder.js';
import { parseHeader } from '#lib/programs/moe/safetensors-header.js';
import { compareView } from '#lib/programs/cli/compare-command.js';
import { traceView } from '#lib/programs/cli/trace-command.js';
import { viewText } from '#lib/programs/report/view.js';
import { partsOfChrome } from '#lib/tracing/chrome-trace.js';
import { summarize } from '#lib/tracing/trace-summary.js';
import { smallModels } from '../../support/checkpoints/models.ts';
import { writeCheckpoint } from '../../support/checkpoints/write-checkpoint.ts';

type Json = Readonly<Record<string, unknown>>;

const PLANTED = '\u001b[2J\u009b3J\u202e\nweftline: all is well';

/** The document with one of its texts or names changed, for each of them. */
function* spoilt(value: unknown): Generator {
  if (typeof value === 'string') yield value + PLANTED;
  if (Array.isArray(value)) {
    for (const [at, one] of value.entries()) for (const other of spoilt(one)) yield value.with(at, other);
    return;
  }
  if (typeof value !== 'object' || value === null) return;
  for (const [name, one] of Object.entries(value)) {
    for (const other of spoilt(one)) yield { ...value, [name]: other };
    const entries = Object.entries(value).map(([key, each]) => [key === name ? key + PLANTED : key, each]);
    yield Object.fromEntries(entries);
  }
  yield { ...value, [PLANTED]: PLANTED };
}

/** What `read` says of the document, or the error that it ends with. */
async function said(read: () => string | Promise<string>): Promise<string> {
  try {
    return await read();
  } catch (error) {
    return (error as Error).message;
  }
}

async function holds(
  name: string,
  document: unknown,
  read: (spoilt: never) => string | Promise<string>,
): Promise<void> {
  let count = 0;
  for (const one of spoilt(document)) {
    const text = await said(() => read(one as never));
    assert.doesNotMatch(text.replaceAll('\n', ''), /[\p{Cc}\p{Cf}]/u, `${name}: ${JSON.stringify(one)}`);
    assert.doesNotMatch(text, /^weftline: all is well/m, `${name}: ${JSON.stringify(one)}`);
    count += 1;
  }
  assert.ok(count > 0);
}

function folderOf(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-hostile-'));
  t.after(() => rmSync(folder, { recursive: true }));
  return folder;
}

function compared(one: Json, other: Json): string {
  return viewText(compareView(['a', 'b'], compareResults(one, other)));
}

function summed(trace: unknown): string {
  return viewText(traceView('t.json', summarize(partsOfChrome(trace))));
}

test('results of benches', async () => {
  const result = {
    schema: 'weftline.bench.ep/1',
    workload: { tokens: 1, dtype: 'bf16' },
    machine: { processor: 'x' },
    cases: [{ name: 'dispatch', phase: 'p', kind: 'k', dtype: 'd', from: 'f', sizes: 's', microseconds: 3 }],
  };
  assert.match(compared(result, result), /dispatch/);
  await holds('first', result, (one) => compared(one, result));
  await holds('second', result, (one) => compared(result, one));
  await holds('both', result, (one) => compared(one, one));
});

test('traces', async () => {
  const call = { ph: 'X', name: 'EpBuffer.barrier', cat: 'call', tid: 0, ts: 0, dur: 1, args: { subject: 1 } };
  const trace = {
    otherData: { weftline: 'trace' },
    traceEvents: [
      { ph: 'M', name: 'process_name', pid: 0, args: { name: 'rank 0 on host' } },
      { ph: 'M', name: 'process_name', pid: 1, args: { name: 'rank 1 on host' } },
      { ph: 'M', name: 'process_name', pid: 2, args: { name: 'train.js (process 2)' } },
      { ph: 'M', name: 'thread_name', pid: 0, tid: 0, args: { name: 'main' } },
      ...[0, 1, 2].map((pid) => ({ ...call, pid })),
      { ...call, ph: 'X', name: 'wait for rank 1', cat: 'kernel.wait', pid: 0 },
      { ...call, ph: 'b', id: '1', pid: 0 },
      { ...call, ph: 'e', id: '1', pid: 0 },
    ],
  };
  assert.match(summed(trace), /train\.js/);
  await holds('trace', trace, summed);
});

test('models: configuration, index and headers', async (t) => {
  const { folder, input } = await writeCheckpoint(join(folderOf(t), 'm'), smallModels.deepseekV3, {
    tokens: 3,
    seed: 1,
  });
  const read = async (): Promise<string> => {
    await using opened = await ModelFolder.open(folder);
    await using source = await CheckpointSource.open(opened, { layer: 3, input });
    return JSON.stringify(Object.keys(source.block)).replaceAll('\\n', '');
  };
  for (const name of ['config.json', 'model.safetensors.index.json']) {
    const file = join(folder, name);
    const text = readFileSync(file, 'utf8');
    const document = JSON.parse(text) as Record<string, Json>;
    // Some of hundreds of tensors are enough.
    const { weight_map: map } = document;
    const brief = map === undefined ? document : { weight_map: Object.fromEntries(Object.entries(map).slice(0, 2)) };
    await holds(name, brief, async (one: Json) => {
      const whole = map === undefined ? one : { ...one, weight_map: { ...map, ...(one['weight_map'] as Json) } };
      writeFileSync(file, JSON.stringify(whole));
      return await read();
    });
    writeFileSync(file, text);
  }
  const quantised = {
    quantization_config: { quant_method: 'gptq' },
  };
  const config = join(folder, 'config.json');
  const text = readFileSync(config, 'utf8');
  await holds('quantization', quantised, async (one: Json) => {
    writeFileSync(config, JSON.stringify({ ...(JSON.parse(text) as Json), ...one }));
    return await read();
  });
  const header = { __metadata__: { config: '{}' }, w: { dtype: 'BF16', shape: [1], data_offsets: [0, 2] } };
  await holds('header', header, (one) => {
    const { tensors } = parseHeader(Buffer.from(JSON.stringify(one)), 2, 'm.safetensors');
    return String(tensors.size);
  });
});

test('tables of algorithms and bundles of kernels', async (t) => {
  const folder = folderOf(t);
  const table = join(folder, 'table.json');
  const list = [{ algorithm: 'direct' }];
  await holds('table', { schema: 's', shapes: [{ ranks: 2, hosts: 1, allReduce: list, reduce: list }] }, (one) => {
    writeFileSync(table, JSON.stringify(one));
    return String(readTableFile(table).shapes.length);
  });
  const variant = { name: 'k', architecture: 'sm_90a', sources: 's', cubin: 'k.cubin', sha256: 'h' };
  const bundle = { schema: 'weftline.kernels/1', compiler: 'c', variants: [variant] };
  await holds('bundle', bundle, (one) => {
    writeFileSync(join(folder, 'weftline-kernels.json'), JSON.stringify(one), { mode: 0o644 });
    return String(readBundle(folder, variant));
  });
});
