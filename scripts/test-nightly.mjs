// The random tests with another seed, and longer than in the gate. WEFTLINE_TEST_SEED=N repeats a night.
import { spawnSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { fileURLToPath } from 'node:url';

const MAX_SEED = 1_000_000_007;
const root = fileURLToPath(new URL('..', import.meta.url));
const wish = process.env['WEFTLINE_TEST_SEED'] ?? 'random';
const seed = wish === 'random' ? String(randomInt(1, MAX_SEED)) : wish;
console.log(`WEFTLINE_TEST_SEED=${seed}`);

const steps = [
  [
    'scripts/test.mjs',
    'property/',
    'sim/',
    'hostile/',
    'agent-conformance',
    'local/collectives',
    'ep-conformance',
    'low-latency.test',
    'ep-topologies',
    'ep-loss',
    'device-api',
    'local-copies',
    'cuda-compile',
    'moe.test',
    'part-puts',
    'proxy-network',
    'sparse-all-reduce',
    'rdma/',
  ],
  // Its own cases, many times as long.
  ['scripts/test.mjs', 'low-latency-elastic'],
  ['dist/programs/cli/main.js', 'sim', 'random', '--seed', seed, '--count', '10000'],
  ['scripts/test-hostile.mjs', '--seed', seed],
];
const failed = steps.filter((words) => {
  console.log(`\n> node ${words.join(' ')}`);
  const times = words.includes('low-latency-elastic') ? { WEFTLINE_TEST_EP: '20' } : {};
  const env = {
    ...process.env,
    WEFTLINE_TEST_SEED: seed,
    WEFTLINE_TEST_RDMA: 'all',
    WEFTLINE_TEST_EXTENT: 'whole',
    ...times,
  };
  return spawnSync(process.execPath, words, { cwd: root, stdio: 'inherit', env }).status !== 0;
});
for (const words of failed) console.error(`Failed with WEFTLINE_TEST_SEED=${seed}: node ${words.join(' ')}`);
process.exit(failed.length === 0 ? 0 : 1);
