// What tracing or metrics cost: `bench ep` with and without, in turn, and the ratio of the medians of each pair.
// node scripts/tracing-cost.mjs COMMAND trace|metrics cpu|cuda RANKS PAIRS [MORE-FLAGS]: for docs/benchmarks/tracing.md
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [command, what, device, ranks, pairs, ...more] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), 'weftline-cost-'));
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
const values = { trace: join(folder, 't.json'), metrics: 'on' };
const words = ['bench', 'ep', '--device', device, '--ranks', ranks, '--no-layer', '--quiet', '--json', '-', ...more];

/** Median µs of each case. */
function run(isOn) {
  const env = { ...process.env, [`WEFTLINE_${what.toUpperCase()}`]: isOn ? values[what] : '' };
  const document = JSON.parse(execFileSync(command, words, { encoding: 'utf8', env, maxBuffer: 2 ** 28 }));
  const runs = document.runs ?? [{ cases: document.cases }];
  return new Map(
    runs.flatMap(({ numSms, cases }) =>
      cases.map(({ name, microseconds, readyMicroseconds }) => [
        numSms === undefined ? name : `${numSms} SMs ${name}`,
        (microseconds ?? readyMicroseconds).median,
      ]),
    ),
  );
}

function median(numbers) {
  return numbers.toSorted((left, right) => left - right)[Math.floor(numbers.length / 2)];
}

function list(numbers) {
  return numbers.map((number) => number.toFixed(3)).join(', ');
}

// Compiles, and warms up.
run(false);
run(true);
const seen = new Map();
for (let pair = 0; pair < Number(pairs); pair++) {
  // The first of a pair is not always the same one; the second "off" shows what chance does.
  const order = pair % 2 === 0 ? [false, true, false] : [false, false, true];
  const runs = order.map((isOn) => ({ isOn, medians: run(isOn) }));
  const on = runs.find(({ isOn }) => isOn).medians;
  const [off, again] = runs.filter(({ isOn }) => !isOn).map(({ medians }) => medians);
  for (const [name, us] of on) {
    const entry = seen.get(name) ?? { on: [], off: [], ratio: [], chance: [] };
    seen.set(name, entry);
    const without = (off.get(name) + again.get(name)) / 2;
    entry.on.push(us);
    entry.off.push(without);
    entry.ratio.push(us / without);
    entry.chance.push(again.get(name) / off.get(name));
  }
}
console.log(`${what}: ${words.join(' ')}`);
for (const [name, { on, off, ratio, chance }] of seen) {
  console.log(
    `${name}: on ${median(on).toFixed(1)} µs, off ${median(off).toFixed(1)} µs; on/off ${median(ratio).toFixed(3)} (${list(ratio)}); off/off ${median(chance).toFixed(3)} (${list(chance)})`,
  );
}
