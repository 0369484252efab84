// Every backend for minutes on end: npm run test:soak -- --minutes 10. Fails if descriptors, mappings, threads or memory grow.
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { launch } from 'weftline/world';
import { soakKinds, type SoakKind } from './kinds.ts';
import { checkNames, numberOption } from '../support/options.ts';
import { type Sample, type Trend, trendsOf } from './sample.ts';

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '10' },
    kind: { type: 'string', multiple: true },
    json: { type: 'string' },
  },
});

checkNames('kind', values.kind ?? [], soakKinds);
const script = fileURLToPath(new URL('./worker.js', import.meta.url));
const seconds = 60 * numberOption('minutes', values.minutes);
/** To start and to end. */
const SLACK_MS = 60_000;
const EP_RANKS = 2;

interface Line {
  readonly kind: SoakKind;
  readonly who: string;
  readonly sample?: Sample;
}

const samples = new Map<string, Sample[]>();
const faults: string[] = [];

function take(text: string): void {
  if (!text.startsWith('{')) {
    console.log(text);
    return;
  }
  const { kind, who, sample } = JSON.parse(text) as Line;
  if (sample === undefined) return;
  const name = `${kind} ${who}`;
  samples.set(name, [...(samples.get(name) ?? []), sample]);
}

async function soak(kind: SoakKind): Promise<void> {
  const words = ['--expose-gc', script, kind, String(seconds)];
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined };
  const signal = AbortSignal.timeout(seconds * 1000 + SLACK_MS);
  if (kind === 'ep') {
    const { exitCode } = await launch({
      command: [process.execPath, ...words],
      ranks: EP_RANKS,
      env: { NODE_TEST_CONTEXT: undefined },
      signal,
      onLine: ({ text }) => take(text),
    });
    if (exitCode !== 0) faults.push(`${kind} ended with ${exitCode}`);
    return;
  }
  const child = spawn(process.execPath, words, {
    stdio: ['ignore', 'pipe', 'inherit'],
    env,
    signal,
    killSignal: 'SIGKILL',
  });
  child.on('error', (error) => faults.push(`${kind}: ${error.message}`));
  createInterface(child.stdout).on('line', take);
  const code = await new Promise<number | string>((resolve) => {
    child.once('close', (exit, how) => resolve(how ?? exit ?? 'nothing'));
  });
  if (code !== 0) faults.push(`${kind} ended with ${code}`);
}

function kindsHere(): readonly SoakKind[] {
  return soakKinds.filter((kind) => values.kind === undefined || values.kind.includes(kind));
}

const kinds = kindsHere();
console.log(`${kinds.join(', ')} for ${seconds} s`);
await Promise.all(kinds.map(soak));

const MIB = 2 ** 20;
const show = ({ quantity, first, last, isFlat }: Trend): string => {
  const scale = quantity.endsWith('Bytes') ? MIB : 1;
  const digits = scale === 1 ? 0 : 1;
  return `${(first / scale).toFixed(digits)} > ${(last / scale).toFixed(digits)}${isFlat ? '' : ' GROWS'}`;
};
const rows = [...samples]
  .toSorted(([one], [other]) => (one < other ? -1 : 1))
  .map(([name, list]) => {
    const trends = trendsOf(list);
    for (const trend of trends) if (!trend.isFlat) faults.push(`${name}: ${trend.quantity} ${show(trend)}`);
    return { name, cycles: list.at(-1)?.cycles ?? 0, trends };
  });
for (const kind of kinds) if (!rows.some(({ name }) => name.startsWith(kind))) faults.push(`${kind} gave no samples`);
console.log('medians of the first and the last third, memory in MiB');
const head = ['', 'cycles', ...(rows[0]?.trends.map(({ quantity }) => quantity.replace('Bytes', '')) ?? [])];
const table = [head, ...rows.map(({ name, cycles, trends }) => [name, String(cycles), ...trends.map(show)])];
const widths = head.map((_, column) => Math.max(...table.map((row) => (row[column] ?? '').length)));
for (const row of table) console.log(row.map((cell, column) => cell.padEnd(widths[column] as number)).join('  '));
if (values.json !== undefined) writeFileSync(values.json, JSON.stringify({ seconds, rows, faults }, undefined, 1));
for (const fault of faults) console.log(`FAULT ${fault}`);
process.exit(faults.length === 0 ? 0 : 1);
