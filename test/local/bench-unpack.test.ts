// weftline bench unpack on the CPU device: every stage runs and is checked inside, pages arrive, the documents are whole.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { UnpackBenchReport } from '#lib/programs/bench/unpack/unpack-bench.js';
import { checkRoadPlan, type RoadReport } from '#lib/programs/bench/unpack/road.js';
import { cudaDeviceCount } from '#lib/device/cuda/cuda-context.js';
import { verdictOf } from '#lib/programs/bench/unpack/unpack-bench.js';
import { freePort } from '../support/free-port.js';

const commandLine = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const hasGpu = cudaDeviceCount() > 0;

function bench(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  const all = [commandLine, 'bench', 'unpack', '--device', 'cpu', ...args];
  return spawnSync(process.execPath, all, { encoding: 'utf8', timeout: 600_000 });
}

test('bench unpack measures every stage for every length of fragments', () => {
  const sizes = ['--chunk', '64K', '--total', '256K', '--fragments', '64,4K'];
  const { status, stdout, stderr } = bench(...sizes, '--iterations', '2', '--warmup', '1', '--json', '-');
  assert.equal(status, 0, stderr);
  const report = JSON.parse(stdout) as UnpackBenchReport;
  assert.equal(report.schema, 'weftline.bench.unpack/1');
  assert.deepEqual(report.workload, { chunkBytes: 65_536, totalBytes: 262_144, fragments: [64, 4096] });
  const names = ['launcher per chunk', 'preallocated', 'batched', 'batched, prepared once', 'copies one by one'];
  assert.deepEqual(
    report.stages.map(({ name, fragmentBytes }) => [name, fragmentBytes]),
    [64, 4096].flatMap((bytes) => names.map((name) => [name, bytes])),
  );
  for (const { microseconds, verdict } of report.stages) {
    assert.equal(microseconds.count, 2);
    // The document speaks of GPUs.
    assert.equal(verdict, '');
  }
  assert.deepEqual([report.components, report.kernels], [[], []]);
});

test('the table of a CPU device has no columns for a document that speaks of GPUs', () => {
  const sizes = ['--chunk', '64K', '--total', '128K', '--fragments', '4K'];
  const { status, stdout, stderr } = bench(...sizes, '--iterations', '1', '--warmup', '0');
  assert.equal(status, 0, stderr);
  assert.match(stdout, /× copies/);
  assert.doesNotMatch(stdout, /document/);
});

test('bench unpack on GPUs says what to do where there is none', { skip: hasGpu && 'this machine has a GPU' }, () => {
  for (const role of [[], ['--role', 'server']]) {
    const { status, stderr } = bench('--device', 'cuda', ...role);
    assert.equal(status, 1);
    assert.match(stderr, /WL_UNSUPPORTED: .*no GPU.*--device cpu/);
  }
});

test('bench unpack refuses lengths that do not divide the chunk', () => {
  for (const sizes of [
    ['--fragments', '3K'],
    ['--chunk', '1M', '--fragments', '256'],
    ['--total', '100K'],
  ]) {
    const { status, stderr } = bench(...sizes);
    assert.equal(status, 2);
    assert.match(stderr, /WL_INVALID_ARGUMENT: Invalid --(?:fragments|total): expected .*multiple/);
  }
});

test('bench unpack refuses multiprocessors for the CPU device', () => {
  const { status, stderr } = bench('--sms', '4');
  assert.equal(status, 2);
  assert.match(stderr, /WL_INVALID_ARGUMENT: Invalid --sms: expected none/);
});

test('a measurement confirms a figure within a factor of three', () => {
  assert.deepEqual(
    [verdictOf(100, 299), verdictOf(100, 34), verdictOf(100, 301), verdictOf(100, 33), verdictOf(100, undefined)],
    ['confirms', 'confirms', 'refutes', 'refutes', ''],
  );
});

for (const mode of ['kernel', 'd2d']) {
  test(`bench unpack sends scattered pages from a client to a server that moves them by ${mode}`, async () => {
    const port = await freePort();
    const server = spawn(
      process.execPath,
      [commandLine, 'bench', 'unpack', '--role', 'server', '--device', 'cpu', '--unpack', mode, '--port', String(port)],
      { stdio: ['ignore', 'ignore', 'pipe'], timeout: 600_000 },
    );
    let said = '';
    server.stderr.on('data', (text: Buffer) => (said += text.toString()));
    const exited = once(server, 'exit');
    const client = ['bench', 'unpack', '--role', 'client', '--port', String(port), '--chunk', '64K', '--total', '640K'];
    const flags = ['--fragments', '1K', '--iterations', '3', '--warmup', '1', '--json', '-'];
    const child = spawn(process.execPath, [commandLine, ...client, ...flags], { timeout: 600_000 });
    let stdout = '';
    let stderr = '';
    child.stdout.on('data', (text: Buffer) => (stdout += text.toString()));
    child.stderr.on('data', (text: Buffer) => (stderr += text.toString()));
    const [status] = (await once(child, 'close')) as [number | null];
    assert.equal(status, 0, stderr + said);
    const report = JSON.parse(stdout) as RoadReport;
    assert.equal(report.schema, 'weftline.bench.unpack-road/1');
    assert.deepEqual([report.device, report.mode, report.microseconds.count], ['cpu', mode, 3]);
    assert.deepEqual(report.plan, { chunkBytes: 65_536, chunks: 10, fragmentBytes: 1024, iterations: 3, warmup: 1 });
    assert.deepEqual(await exited, [0, null], said);
  });
}

test('a plan that no server would take is refused', () => {
  const plan = { chunkBytes: 65_536, chunks: 4, fragmentBytes: 4096, iterations: 1, warmup: 0 };
  assert.equal(checkRoadPlan(plan), plan);
  assert.throws(() => checkRoadPlan(null), { code: 'WL_INVALID_ARGUMENT' });
  for (const wrong of [
    { chunks: 2 ** 20 },
    { fragmentBytes: 5000 },
    { chunkBytes: 1.5 },
    { warmup: -1 },
    { iterations: 0 },
  ]) {
    assert.throws(() => checkRoadPlan({ ...plan, ...wrong }), { code: 'WL_INVALID_ARGUMENT' });
  }
});
