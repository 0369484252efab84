// Records as kernels write them: a stand-in writes them into the ring, and they are read back as phases of groups of blocks.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { KERNEL_RECORDS, kernelRecord, NO_PEER, OWN_BLOCKS, pointHash } from '#lib/abi/kernel-trace.js';
import { createTraceFile, KERNEL_RINGS, KernelRing, removeOwnKernelMemory } from '#lib/tracing/trace-rings.js';
import { Block } from '#lib/abi/layout.js';
import { type TracePoint, tracePoints } from '#lib/core/trace.js';
import { viewAt } from '#lib/native/library.js';
import { chromeTrace, partsOfChrome } from '#lib/tracing/chrome-trace.js';
import { readTracePart, type TracePart } from '#lib/tracing/read-part.js';
import { summarize } from '#lib/tracing/trace-summary.js';

const who = { pid: process.pid, rank: 0, size: 2, host: hostname(), program: 'x', launcher: 3 } as const;
/** A GPU's clock may count from 1970 too. */
const HIGH = 415_000_000;
const HOST_US = 1_780_000_000_000_000;

interface Told {
  readonly ns: number;
  readonly point: TracePoint;
  readonly isEnd?: boolean;
  readonly label: number;
  readonly launch?: number;
  readonly block?: number;
  readonly peer?: number;
}

/** Writes records as trace.cuh does. */
class PretendedKernels {
  readonly ring: KernelRing;
  #taken = 0;

  constructor(path: string) {
    this.ring = KernelRing.claim(createTraceFile(path, who), 3)!;
  }

  tell({ ns, point, isEnd = false, label, launch = 1, block = 0, peer = NO_PEER }: Told): void {
    const at = (this.#taken % KERNEL_RECORDS) * kernelRecord.size;
    this.#taken += 1;
    const record = new Block(kernelRecord, viewAt(this.ring.memory! + at, kernelRecord.size), 0);
    record.set('time', HIGH * 2 ** 32 + ns);
    record.set('point', pointHash(point));
    record.set('sequence', this.#taken);
    record.set('launch', launch);
    record.set('block', block + (label * 2 + (isEnd ? 1 : 0)) * 65_536);
    record.set('peer', peer);
    record.set('sequenceAgain', this.#taken);
  }

  phase(from: number, to: number, rest: Omit<Told, 'ns'>): void {
    this.tell({ ns: from, ...rest });
    this.tell({ ns: to, isEnd: true, ...rest });
  }

  skip(count: number): void {
    this.#taken += count;
  }

  /** GPU's ns 0 is the host's HOST_US, and the clocks go alike. */
  compare(ns = 0, hostUs = HOST_US + ns / 1000): void {
    this.ring.addSample({ high: HIGH, low: ns, hostUs, errorUs: 2 });
  }
}

function kernelsIn(t: TestContext): { readonly kernels: PretendedKernels; readonly read: () => TracePart } {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-kernels-'));
  t.after(() => {
    rmSync(folder, { recursive: true });
    for (let ring = 0; ring < KERNEL_RINGS; ring++) removeOwnKernelMemory(ring);
  });
  const path = join(folder, 'part');
  return { kernels: new PretendedKernels(path), read: () => readTracePart(path) };
}

function time(us: number | undefined): string {
  return us === undefined ? '' : (us - HOST_US).toFixed(0);
}

/** "label begin-end" in µs since HOST_US. */
function shown(part: TracePart): Record<string, string[]> {
  return Object.fromEntries(
    part.threads.map(({ name, spans }) => [
      name,
      spans.map(({ point, label, begin, end }) => `${label === '' ? point : label} ${time(begin)}-${time(end)}`),
    ]),
  );
}

test('phases of blocks become those of groups of 16, by kernel file, with who was waited for', (t) => {
  const { kernels, read } = kernelsIn(t);
  const dispatch = kernels.ring.labelOf('ep-dispatch.cu');
  const combine = kernels.ring.labelOf('ep-combine.cu COLUMNS=8');
  assert.equal(kernels.ring.labelOf('ep-dispatch.cu'), dispatch);
  kernels.compare();
  for (const block of [0, 15, 16]) {
    const at = block * 1000;
    const own = { label: dispatch, block };
    kernels.tell({ ns: at, point: 'kernel', ...own });
    kernels.phase(at + 1000, at + 40_000, { point: 'ep.dispatch.rows', ...own });
    kernels.phase(at + 41_000, at + 60_000, { point: 'kernel.wait', peer: 1, ...own });
    kernels.phase(at + 41_000, at + 50_000, { point: 'kernel.wait', peer: OWN_BLOCKS, ...own });
    kernels.tell({ ns: at + 61_000, point: 'kernel', isEnd: true, ...own });
  }
  kernels.tell({ ns: 100_000, point: 'kernel', label: combine, launch: 2 });
  const part = read();
  assert.deepEqual(shown(part), {
    'GPU 3: ep-dispatch, blocks 0-15': [
      'kernel ep-dispatch 0-76',
      'ep.dispatch.rows 1-55',
      'wait for rank 1 41-75',
      'wait for own blocks 41-50',
      'wait for own blocks 56-65',
    ],
    'GPU 3: ep-combine, blocks 0-15': ['kernel ep-combine 100-'],
    'GPU 3: ep-dispatch, blocks 16-31': [
      'kernel ep-dispatch 16-77',
      'ep.dispatch.rows 17-56',
      'wait for rank 1 57-76',
      'wait for own blocks 57-66',
    ],
  });
  const { kernelWaits, phases } = summarize([part]);
  assert.deepEqual(
    kernelWaits.map(({ waiter, peer, count, waitedUs }) => [waiter, peer, count, Math.round(waitedUs)]),
    [
      ['rank 0', 'rank 1', 2, 53],
      ['rank 0', 'own blocks', 3, 27],
    ],
  );
  assert.equal(phases.find(({ phase }) => phase === 'kernel ep-combine')!.open, 1);
  const again = partsOfChrome(JSON.parse(JSON.stringify(chromeTrace([part], new Map()))));
  assert.deepEqual(
    summarize(again).kernelWaits.map(({ peer, count }) => [peer, count]),
    [
      ['rank 1', 2],
      ['own blocks', 3],
    ],
  );
});

test('launches at the same time are on tracks of their own, later ones on the first', (t) => {
  const { kernels, read } = kernelsIn(t);
  const label = kernels.ring.labelOf('ep-dispatch.cu');
  kernels.compare();
  kernels.phase(0, 10_000, { point: 'kernel', label, launch: 1 });
  kernels.phase(5000, 15_000, { point: 'kernel', label, launch: 2 });
  kernels.phase(20_000, 25_000, { point: 'kernel', label, launch: 3 });
  assert.deepEqual(shown(read()), {
    'GPU 3: ep-dispatch, blocks 0-15': ['kernel ep-dispatch 0-10', 'kernel ep-dispatch 20-25'],
    'GPU 3: ep-dispatch, blocks 0-15, stream 2': ['kernel ep-dispatch 5-15'],
  });
});

test('the clock of a GPU that drifts is taken as even between comparisons', (t) => {
  const { kernels, read } = kernelsIn(t);
  const label = kernels.ring.labelOf('a.cu');
  kernels.compare(0, HOST_US);
  kernels.compare(1_000_000_000, HOST_US + 1_000_100);
  kernels.phase(500_000_000, 1_500_000_000, { point: 'kernel', label });
  const { threads, gpuClocks } = read();
  const { begin, end } = threads[0]!.spans[0]!;
  assert.deepEqual([begin - HOST_US, end! - HOST_US].map(Math.round), [500_050, 1_500_150]);
  const [{ device, driftUs, samples, errorUs }] = gpuClocks as [(typeof gpuClocks)[0]];
  assert.deepEqual([device, Math.round(driftUs), samples, errorUs], [3, -100, 2, 2]);
});

test('records whose times are none, by odd comparisons of clocks, are left out', (t) => {
  const { kernels, read } = kernelsIn(t);
  const label = kernels.ring.labelOf('a.cu');
  kernels.compare(0, HOST_US);
  kernels.compare(1e-300, HOST_US + 1);
  for (const ns of [0, 5000]) kernels.tell({ ns, point: 'kernel', label, launch: 1 + ns });
  const part = read();
  assert.deepEqual(shown(part), { 'GPU 3: a, blocks 0-15': ['kernel a 0-'] });
  assert.equal(partsOfChrome(JSON.parse(JSON.stringify(chromeTrace([part], new Map())))).length, 1);
});

test('halves of records, records of an earlier round, and unknown points are left out; the last ones stay', (t) => {
  const { kernels, read } = kernelsIn(t);
  const label = kernels.ring.labelOf('a.cu');
  kernels.compare();
  kernels.phase(1000, 2000, { point: 'kernel', label, launch: 1 });
  kernels.skip(KERNEL_RECORDS - 2);
  kernels.tell({ ns: 3000, point: 'kernel', label, launch: 2 });
  kernels.tell({ ns: 4000, point: 'kernel', label, launch: 2, isEnd: true });
  kernels.tell({ ns: 5000, point: 'kernel', label, launch: 3 });
  const torn = new Block(kernelRecord, viewAt(kernels.ring.memory! + 2 * kernelRecord.size, kernelRecord.size), 0);
  torn.set('sequenceAgain', 3);
  const part = read();
  assert.deepEqual(shown(part), { 'GPU 3: a, blocks 0-15': ['kernel a 3-4'] });
  assert.ok(part.threads[0]!.lost > 0);
});

test('records of a process that was killed are where they were written, and those of others in the file', (t) => {
  const { kernels, read } = kernelsIn(t);
  const label = kernels.ring.labelOf('a.cu');
  kernels.compare();
  kernels.phase(1000, 2000, { point: 'kernel', label });
  const memory = `/dev/shm/weftline.trace.${process.pid}.0`;
  assert.ok(existsSync(memory));
  const before = shown(read());
  kernels.ring.keep();
  assert.ok(!existsSync(memory));
  kernels.tell({ ns: 5000, point: 'kernel', label });
  assert.deepEqual(shown(read()), before);
});

test('what somebody else put at the place of the memory of records stops neither the process nor a reader', (t) => {
  const memory = `/dev/shm/weftline.trace.${process.pid}.0`;
  mkdirSync(memory);
  t.after(() => rmSync(memory, { recursive: true, force: true }));
  const { kernels, read } = kernelsIn(t);
  assert.equal(kernels.ring.memory, undefined);
  kernels.ring.keep();
  rmSync(memory, { recursive: true });

  const { kernels: killed, read: readKilled } = kernelsIn(t);
  killed.compare();
  rmSync(memory);
  assert.equal(spawnSync('mkfifo', [memory]).status, 0);
  assert.deepEqual(
    [read(), readKilled()].map(({ gpuClocks }) => gpuClocks),
    [[], []],
  );
});

test('without a comparison of clocks nothing is shown, and GPUs beyond the rings are not traced', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-kernels-'));
  t.after(() => {
    rmSync(folder, { recursive: true });
    for (let ring = 0; ring < KERNEL_RINGS; ring++) removeOwnKernelMemory(ring);
  });
  const file = createTraceFile(join(folder, 'part'), who);
  for (let ring = 0; ring < KERNEL_RINGS; ring++) assert.ok(KernelRing.claim(file, ring));
  assert.equal(KernelRing.claim(file, 9), undefined);
  assert.deepEqual(readTracePart(file.path).gpuClocks, []);
});

test('kernels know trace points by hashes, which differ', () => {
  assert.equal(new Set(tracePoints.map(pointHash)).size, tracePoints.length);
  assert.equal(pointHash('kernel'), 580800216);
});
