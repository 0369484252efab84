// Kills, stops and continues processes at random moments: node build/test/hostile/chaos/main.js --kills 1000 --stops 1000
// As root it runs in a mount namespace of its own, so that whatever is left in /dev/shm is its own.
import { spawnSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Random } from '../fuzz/random.ts';
import { checkNames, numberOption } from '../support/options.ts';
import { EpJobs } from './ep-jobs.ts';
import type { PairKind } from './driver-link.ts';
import { type ChaosEvent, PairRounds } from './pair-rounds.ts';

const { values } = parseArgs({
  options: {
    kills: { type: 'string', default: '1000' },
    stops: { type: 'string', default: '1000' },
    /** Stops that last longer than the deadline. */
    'long-stops': { type: 'string', default: '20' },
    seed: { type: 'string' },
    kind: { type: 'string', multiple: true },
    verbose: { type: 'boolean', default: false },
  },
});

const OWN_SHM = 'WEFTLINE_TEST_OWN_SHM';
if (process.getuid?.() === 0 && process.env[OWN_SHM] === undefined) {
  const command = 'mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"';
  const words = ['-m', 'sh', '-c', command, process.execPath, fileURLToPath(import.meta.url), ...process.argv.slice(2)];
  const env = { ...process.env, [OWN_SHM]: '1' };
  if (spawnSync('unshare', ['-m', 'mount', '-t', 'tmpfs', 'tmpfs', '/dev/shm']).status === 0) {
    process.exit(spawnSync('unshare', words, { stdio: 'inherit', env }).status ?? 1);
  }
}

function kindsHere(): readonly (PairKind | 'ep')[] {
  const all = ['local', 'multipath', 'transport', 'ep'] as const;
  const wanted = values.kind ?? all;
  checkNames('kind', wanted, all);
  return all.filter((kind) => wanted.includes(kind));
}

const seed = values.seed === undefined ? randomInt(2 ** 31) : numberOption('seed', values.seed);
const kinds = kindsHere();
const again = `--kills ${values.kills} --stops ${values.stops} --long-stops ${values['long-stops']}`;
console.log(`seed ${seed}, ${kinds.join(', ')}; the same events again: --seed ${seed} ${again}`);
const random = new Random(seed);
const left: Record<ChaosEvent, number> = {
  kill: numberOption('kills', values.kills),
  stop: numberOption('stops', values.stops),
  'long stop': numberOption('long-stops', values['long-stops']),
};
const pairs = new PairRounds();
const jobs = new EpJobs();
const start = performance.now();
let events = 0;
let shown = 0;
for (;;) {
  const possible = (Object.keys(left) as ChaosEvent[]).filter((event) => left[event] > 0);
  if (possible.length === 0) break;
  // In proportion to what is left, kinds by turns.
  let at = random.below(possible.reduce((sum, event) => sum + left[event], 0));
  const event = possible.find((one) => (at -= left[one]) < 0) as ChaosEvent;
  left[event]--;
  const kind = kinds[events++ % kinds.length] as PairKind | 'ep';
  const began = performance.now();
  if (kind === 'ep') await jobs.play(event, random);
  else await pairs.play(kind, event, random);
  if (values.verbose) console.log(`${kind}, ${event}: ${(performance.now() - began).toFixed(0)} ms`);
  const faults = [...pairs.faults, ...jobs.faults];
  for (; shown < faults.length; shown++) console.log(`FAULT after ${events} events: ${faults[shown]}`);
  if (events % 100 === 0) console.log(`${events} events, ${Math.round((performance.now() - start) / 1000)} s`);
}
await pairs.close();
const stays = process.env[OWN_SHM] === undefined ? [] : readdirSync('/dev/shm');
if (stays.length > 0) console.log(`FAULT /dev/shm holds ${stays.join(', ')}`);
const faults = pairs.faults.length + jobs.faults.length + Math.min(1, stays.length);
const seconds = ((performance.now() - start) / 1000).toFixed(1);
console.log(
  `${events} events in ${seconds} s, ${pairs.operations} operations, ${jobs.rounds} rounds of ranks: ${faults} faults`,
);
process.exit(faults === 0 ? 0 : 1);
