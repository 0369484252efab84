// Makes the calls of one scene with drawn arguments: argv = scene, seed, first, count, file. The file says which call is under way,
// so that a process that ends by a signal names it. Faults are errors without a code, or with one that says weftline is wrong.
import { closeSync, openSync, writeSync } from 'node:fs';
import { WeftlineError } from 'weftline';
import { mixSeed } from '../fuzz/random.ts';
import { Draw } from './draw.ts';
import { scenes } from './scenes.ts';

const [scene, seed, first, count, file] = process.argv.slice(2) as [string, string, string, string, string];
const calls = Object.entries(await scenes[scene]!());
const noted = openSync(file, 'w');
let faults = 0;
for (let index = Number(first); index < Number(first) + Number(count); index++) {
  const [name, call] = calls[index % calls.length]!;
  writeSync(noted, `${scene} ${seed} ${index}: ${name}`.padEnd(120), 0);
  try {
    await call(new Draw(mixSeed(Number(seed), index)));
  } catch (error) {
    if (error instanceof WeftlineError && error.code !== 'WL_INTERNAL') continue;
    faults += 1;
    if (faults <= 20) console.log(`${scene} ${seed} ${index}: ${name}: ${(error as Error)?.stack ?? String(error)}`);
  }
}
closeSync(noted);
process.exit(faults === 0 ? 0 : 1);
