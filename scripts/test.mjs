// Runs the compiled tests with node's own runner. Arguments: parts of file names to run (default: all but
// those of fresh/, which install packages); --in-one-process for tests that start nothing, which takes a third of the time
// (Node 22.8 or newer); --watch etc. go to node.
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../build/test', import.meta.url));
const ONE_PROCESS = '--in-one-process';
const isOneProcess = process.argv.includes(ONE_PROCESS);
const options = process.argv.slice(2).filter((word) => word.startsWith('--') && word !== ONE_PROCESS);
const wanted = process.argv.slice(2).filter((word) => !word.startsWith('--'));
const files = readdirSync(root, { recursive: true })
  .filter((name) => name.endsWith('.test.js'))
  .filter((name) => (wanted.length === 0 ? !name.startsWith('fresh/') : wanted.some((part) => name.includes(part))))
  .toSorted()
  .map((name) => `${root}/${name}`);
if (files.length === 0) {
  console.error(`No test file matches ${wanted.join(', ')} under ${root}`);
  process.exit(1);
}
/**
 * A test or a file that takes longer hangs, for instance because a failed test left something open. Files whose cases
 * WEFTLINE_TEST_EP multiplies may take as many times as long.
 */
const MAX_TEST_MS = 1_800_000 * Math.max(1, Number(process.env.WEFTLINE_TEST_EP ?? 1));
/** Many tests wait for other processes: one more than processors. */
const concurrency = availableParallelism() + 1;
const flags = ['--test', `--test-concurrency=${concurrency}`, `--test-timeout=${MAX_TEST_MS}`];
/** What a terminal shows well, else what programs read; then a summary. */
const reporters = [process.stdout.isTTY ? 'spec' : 'tap', fileURLToPath(new URL('test-summary.mjs', import.meta.url))];
for (const reporter of reporters) flags.push(`--test-reporter=${reporter}`, '--test-reporter-destination=stdout');
// One seed for all files, also where it is random.
const { seed } = await import(new URL('../build/test/support/seed.js', import.meta.url).href);
console.log(`# WEFTLINE_TEST_SEED=${seed}`);

/** Tests of what there is once in a process need one of their own: metrics, calls, traces, variables, how native functions are bound. */
const ownProcess = [
  'unit/core/waits',
  'unit/device/cuda/kernel-trace',
  'unit/device-api/service/',
  'unit/metrics/',
  'unit/native/',
  'unit/world/world.test',
].map((part) => `${root}/${part}`);
const needsOwnProcess = (file) => ownProcess.some((part) => file.startsWith(part));

/** False if a test failed. */
function run(...words) {
  const { status } = spawnSync(process.execPath, [...flags, ...options, ...words], {
    stdio: 'inherit',
    env: { ...process.env, WEFTLINE_TEST_SEED: String(seed) },
  });
  return status === 0;
}

let isPass = true;
const together = isOneProcess ? files.filter((file) => !needsOwnProcess(file)) : [];
if (together.length > 0) isPass = run('--experimental-test-isolation=none', ...together);
const apart = files.filter((file) => !together.includes(file));
if (apart.length > 0) isPass = run(...apart) && isPass;
process.exit(isPass ? 0 : 1);
