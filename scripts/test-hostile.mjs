// The long runs against hostile input, strangers, chaos and a bad network; each prints how to do the same again.
// Options: --inputs 10000000, --kills 1000, --stops 1000, --flood 3000, --traffic 20, --seed N; --only fuzz|strangers|chaos|middlebox.
import { spawnSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const { values } = parseArgs({
  options: {
    inputs: { type: 'string', default: '10000000' },
    kills: { type: 'string', default: '1000' },
    stops: { type: 'string', default: '1000' },
    flood: { type: 'string', default: '3000' },
    traffic: { type: 'string', default: '20' },
    seed: { type: 'string', default: String(randomInt(2 ** 31)) },
    only: { type: 'string', multiple: true, default: ['fuzz', 'strangers', 'chaos', 'middlebox'] },
  },
});

const root = fileURLToPath(new URL('..', import.meta.url));
const hostile = `${root}build/test/hostile`;
const test = [`${root}scripts/test.mjs`];
const runs = {
  fuzz: { words: [`${hostile}/fuzz/main.js`, '--count', values.inputs, '--seed', values.seed] },
  strangers: { words: [...test, 'hostile/strangers'], env: { WEFTLINE_TEST_FLOOD: values.flood } },
  chaos: {
    words: [`${hostile}/chaos/main.js`, '--kills', values.kills, '--stops', values.stops, '--seed', values.seed],
  },
  middlebox: { words: [...test, 'hostile/middlebox'], env: { WEFTLINE_TEST_MIDDLEBOX: values.traffic } },
};

let failed = 0;
for (const name of values.only) {
  if (!(name in runs)) {
    console.error(`There is no run ${name}: expected ${Object.keys(runs).join(', ')}`);
    process.exit(1);
  }
  const { words, env = {} } = runs[name];
  console.log(`${name}: node ${words.join(' ')}`);
  const { status } = spawnSync(process.execPath, words, {
    cwd: root,
    stdio: 'inherit',
    env: { ...process.env, ...env },
  });
  if (status !== 0) failed += 1;
}
console.log(failed === 0 ? 'no fault was found' : `${failed} of the runs found faults`);
process.exit(failed === 0 ? 0 : 1);
