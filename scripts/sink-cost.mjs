// What metrics or a trace cost calls of EpBuffer on CPU ranks: on and off in turn within the same processes.
// weftline run -n 4 scripts/sink-cost.mjs metrics|trace [ROUNDS] [TOKENS] [DIST-FOLDER]: for docs/benchmarks/tracing.md
import { rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [, , what = 'metrics', pairs = '400', tokensText = '4096', dist = new URL('../dist', import.meta.url).pathname] =
  process.argv;
const load = (path) => import(pathToFileURL(`${dist}/${path}`).href);
const { CpuDevice } = await load('index.js');
const { EpBuffer } = await load('ep/index.js');
const { Communicator } = await load('collectives/index.js');
const { join: joinWorld } = await load('world/index.js');
const { addTraceSink } = await load('core/trace.js');
const { MetricsSink } = await load('metrics/metrics-sink.js');
const { createTraceFile } = await load('tracing/trace-rings.js');
const { RingSink } = await load('tracing/ring-sink.js');

const world = await joinWorld();
const device = await CpuDevice.create();
const [tokens, hidden, topk, experts] = [Number(tokensText), 1024, 8, 64];
const config = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk };
const buffer = await EpBuffer.create(world, device, config);
const communicator = await Communicator.create(world, device);
const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(0x3f80));
const choices = Int32Array.from(
  { length: tokens * topk },
  (_, at) => (Math.floor(at / topk) * 7 + (at % topk) * 9) % experts,
);
const topkIdx = await device.tensor('i32', [tokens, topk], choices);
const sink = what === 'trace' ? makeRing() : new MetricsSink();
const times = {
  dispatch: { on: [], off: [], ratio: [], chance: [] },
  combine: { on: [], off: [], ratio: [], chance: [] },
};

function makeRing() {
  const path = join(tmpdir(), `weftline-sink-cost.${process.pid}.part`);
  process.on('exit', () => rmSync(path, { force: true }));
  const who = { pid: process.pid, rank: world.rank, size: world.size, host: 'here', program: 'sink-cost', launcher: 0 };
  return RingSink.claim(createTraceFile(path, who), 'main');
}

async function timed(call) {
  await communicator.barrier();
  const begin = performance.now();
  const result = await call();
  return { result, us: (performance.now() - begin) * 1000 };
}

async function round(isOn) {
  const remove = isOn ? addTraceSink(sink) : undefined;
  const { result, us: dispatch } = await timed(() => buffer.dispatch({ x, topkIdx }));
  const { us: combine } = await timed(() => buffer.combine({ x: result.recvX, handle: result.handle }));
  result.handle.dispose();
  remove?.();
  return { dispatch, combine };
}

function median(numbers) {
  return numbers.toSorted((left, right) => left - right)[Math.floor(numbers.length / 2)];
}

for (let at = 0; at < 20; at++) await round(at % 2 === 0);
for (let pair = 0; pair < Number(pairs); pair++) {
  const order = [
    [true, false, false],
    [false, true, false],
    [false, false, true],
  ][pair % 3];
  const rounds = [];
  for (const isOn of order) rounds.push({ isOn, us: await round(isOn) });
  const on = rounds.find(({ isOn }) => isOn).us;
  const [off, again] = rounds.filter(({ isOn }) => !isOn).map(({ us }) => us);
  for (const [name, of] of Object.entries(times)) {
    of.on.push(on[name]);
    of.off.push(off[name], again[name]);
    of.ratio.push((2 * on[name]) / (off[name] + again[name]));
    of.chance.push(again[name] / off[name]);
  }
}
for (const [name, { on, off, ratio, chance }] of Object.entries(times))
  console.log(
    `${what}, ${name}: on ${median(on).toFixed(0)} µs, off ${median(off).toFixed(0)} µs: ${(median(on) / median(off)).toFixed(4)}; median of ratios ${median(ratio).toFixed(4)}, off/off ${median(chance).toFixed(4)}`,
  );
await buffer.close();
await communicator.close();
await device.close();
await world.close();
