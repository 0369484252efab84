// Runs the tests of GPUs in a bundle, and tells at the end which tests were skipped and why. Arguments: parts of file names
// (default: all files); --test-concurrency=4 etc. go to node. By default files run one after another, because timings are
// part of what they report.
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../build/test/gpu', import.meta.url));
const words = process.argv.slice(2);
const options = words.filter((word) => word.startsWith('--'));
const wanted = words.filter((word) => !word.startsWith('--'));
const files = readdirSync(root)
  .filter((name) => name.endsWith('.test.js') && (wanted.length === 0 || wanted.some((part) => name.includes(part))))
  .map((name) => `${root}/${name}`);
if (files.length === 0) {
  console.error(`No test file matches ${wanted.join(', ')} under ${root}`);
  process.exit(1);
}
const flags = ['--test', '--test-concurrency=1'];
const reporters = [process.stdout.isTTY ? 'spec' : 'tap', fileURLToPath(new URL('test-summary.mjs', import.meta.url))];
for (const reporter of reporters) flags.push(`--test-reporter=${reporter}`, '--test-reporter-destination=stdout');
const { status } = spawnSync(process.execPath, [...flags, ...options, ...files], { stdio: 'inherit' });
process.exit(status === 0 ? 0 : 1);
