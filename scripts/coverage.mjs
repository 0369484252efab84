// How much of the library the unit tests reach, line by line; fails below a floor. Needs Node 22.8 or newer, and a build.
// Without the transport, whose tests take minutes where every line is counted, and without what other tests are for:
// ranks, commands and peers run in processes of their own, which are not counted.
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** Per cent of lines; raise it when the figure has risen. */
const MIN_LINES = 58;
const left = ['transport', 'congestion', 'architecture', 'support', 'public-declarations'];

const path = (name) => fileURLToPath(new URL(name, import.meta.url));
const folders = readdirSync(path('../build/test/unit'), { withFileTypes: true })
  .filter((entry) => entry.isDirectory() && !left.includes(entry.name))
  .map(({ name }) => `unit/${name}/`);
const flags = [
  '--experimental-test-coverage',
  '--test-coverage-include=dist/**',
  '--test-coverage-exclude=dist/transport/**',
  `--test-coverage-lines=${MIN_LINES}`,
];
const { status, stdout } = spawnSync(process.execPath, [path('test.mjs'), ...flags, ...folders], {
  cwd: path('..'),
  encoding: 'utf8',
  maxBuffer: 1 << 28,
  stdio: ['ignore', 'pipe', 'inherit'],
});
const all = /^# all files +\| +([\d.]+)/m.exec(stdout);
if (status !== 0 || all === null) {
  process.stdout.write(stdout);
  console.error(`coverage: failed; it needs Node 22.8 or newer, this is ${process.version}`);
  process.exit(1);
}
const summary = stdout.split('\n').filter((line) => line.startsWith('unit: '));
console.log([...summary, `coverage: ${all[1]} % of lines by unit tests, at least ${MIN_LINES} %`].join('\n'));
