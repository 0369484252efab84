// Everything that the gate leaves out, and the random tests with another seed and longer. WEFTLINE_TEST_SEED=N repeats a night.
// WEFTLINE_TEST_REQUIRE demands what optional tests need, as in .ci/run.
import { spawnSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { fileURLToPath } from 'node:url';

const MAX_SEED = 1_000_000_007;
const root = fileURLToPath(new URL('..', import.meta.url));
const wish = process.env['WEFTLINE_TEST_SEED'] ?? 'random';
const seed = wish === 'random' ? String(randomInt(1, MAX_SEED)) : wish;
console.log(`WEFTLINE_TEST_SEED=${seed}`);

/** Whole suites; what the gate leaves out is among them. */
const whole = { WEFTLINE_TEST_RDMA: 'all', WEFTLINE_TEST_EXTENT: 'whole' };
const nodes = `${root}build/fresh-tools/node_modules`;
const node = (version) => `${nodes}/node-${version}/bin/node`;
const steps = [
  { words: [process.execPath, 'scripts/test.mjs', '--all'], env: whole },
  // Its own cases, many times as long.
  { words: [process.execPath, 'scripts/test.mjs', 'low-latency-elastic'], env: { ...whole, WEFTLINE_TEST_EP: '20' } },
  { words: [process.execPath, 'dist/programs/cli/main.js', 'sim', 'random', '--seed', seed, '--count', '10000'] },
  { words: [process.execPath, 'dist/programs/cli/main.js', 'sim', 'ep', '--seed', seed, '--count', '10000'] },
  { words: [process.execPath, 'scripts/test-hostile.mjs', '--seed', seed] },
  // The other versions of Node, which the tests of fresh/ have brought by now.
  { words: [node(22), 'scripts/test.mjs', 'unit/', 'property/'] },
  { words: [node(24), 'scripts/test.mjs', 'unit/', 'property/'] },
  { words: [node(26), 'scripts/test.mjs', 'unit/', 'property/'] },
  { words: [node(24), 'scripts/coverage.mjs'] },
  // Offline once its tools are installed; fails on links that lead nowhere.
  { words: [process.execPath, 'scripts/site.mjs'] },
  // What a release would publish, without asking the registry. Last, because packing changes dist/.
  { words: ['npm', 'publish', '--dry-run', '--offline'] },
];
const failed = steps.filter(({ words: [command, ...words], env = {} }) => {
  console.log(`\n> ${command} ${words.join(' ')}`);
  const { status } = spawnSync(command, words, {
    cwd: root,
    stdio: 'inherit',
    env: { ...process.env, WEFTLINE_TEST_SEED: seed, ...env },
  });
  return status !== 0;
});
for (const { words } of failed) console.error(`Failed with WEFTLINE_TEST_SEED=${seed}: ${words.join(' ')}`);
process.exit(failed.length === 0 ? 0 : 1);
