// Runs the compiled tests with node's own runner. Arguments: parts of file names to run (default: all but
// those of fresh/, which install packages); --watch etc. go to node.
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../build/test', import.meta.url));
const options = process.argv.slice(2).filter((word) => word.startsWith('--'));
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
const MAX_TEST_MS = 600_000 * Math.max(1, Number(process.env.WEFTLINE_TEST_EP ?? 1));
const flags = ['--test', '--test-concurrency=2', `--test-timeout=${MAX_TEST_MS}`];
/** What a terminal shows well, else what programs read; then a summary. */
const reporters = [process.stdout.isTTY ? 'spec' : 'tap', fileURLToPath(new URL('test-summary.mjs', import.meta.url))];
for (const reporter of reporters) flags.push(`--test-reporter=${reporter}`, '--test-reporter-destination=stdout');
// One seed for all files, also where it is random.
const { seed } = await import(new URL('../build/test/support/seed.js', import.meta.url).href);
console.log(`# WEFTLINE_TEST_SEED=${seed}`);
const { status } = spawnSync(process.execPath, [...flags, ...options, ...files], {
  stdio: 'inherit',
  env: { ...process.env, WEFTLINE_TEST_SEED: String(seed) },
});
process.exit(status ?? 1);
