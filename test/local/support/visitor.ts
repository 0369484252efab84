// A process that visits listeners and prints what came of it. Arguments: the listeners as JSON, and the tokens to try.
import { outcomeOf, type Target } from './listeners.js';

const targets = JSON.parse(process.argv[2] ?? '[]') as Target[];
const outcomes: Record<string, string[]> = {};
for (const target of targets) {
  outcomes[target.name] = [];
  for (const token of process.argv.slice(3)) outcomes[target.name]?.push(await outcomeOf(target, token, 60_000));
}
console.log(JSON.stringify(outcomes));
