// The failure of each scenario (argv), one after another: prints the error that this rank got as a line of JSON.
import { badInput } from './ep-failures/bad-input.ts';
import { capacity } from './ep-failures/capacity.ts';
import { world } from './ep-failures/context.ts';
import { disagreements } from './ep-failures/disagreements.ts';
import { lostRanks } from './ep-failures/lost-ranks.ts';
import { wrongArguments } from './ep-failures/wrong-arguments.ts';

const scenarios = { ...lostRanks, ...disagreements, ...capacity, ...badInput, arguments: wrongArguments };
for (const name of process.argv.slice(2)) {
  const scenario = Object.entries(scenarios).find(([known]) => known === name)?.[1];
  if (scenario === undefined) throw new Error(`no scenario ${name}`);
  console.log(JSON.stringify(await scenario()));
}
await world.close();
