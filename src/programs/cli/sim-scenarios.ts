// Random scenarios, one after the other: those that break a promise are printed with how to repeat them.
import { exitCodes } from './exit-codes.ts';
import { Output, type OutputFlags } from './output.ts';

export interface RandomFlags extends OutputFlags {
  readonly seed: number;
  readonly count: number;
}

/** What came of one scenario. */
interface ScenarioResult {
  readonly about: string;
  /** Promises that were broken, in words. */
  readonly problems: readonly string[];
  readonly microseconds: number;
  readonly events: number;
}

/** Runs scenarios one after the other, and says how to repeat those that break a promise: by `command` with their seed. */
export async function runRandom(
  { command, schema }: { readonly command: string; readonly schema: string },
  flags: RandomFlags,
  run: (seed: number) => ScenarioResult | Promise<ScenarioResult>,
): Promise<void> {
  const { seed: first, count: scenarios } = flags;
  const output = new Output(flags);
  const broken: { readonly seed: number; readonly problems: readonly string[] }[] = [];
  for (let seed = first; seed < first + scenarios; seed += 1) {
    const { about, problems, microseconds, events } = await run(seed);
    const line = `seed ${seed}: ${about}, ${(microseconds / 1000).toFixed(1)} ms, ${events} events`;
    if (problems.length > 0) {
      broken.push({ seed, problems });
      output.result(`${line}\n  BROKEN: ${problems.join('\n  ')}`);
      output.result(`  again: weftline sim ${command} --seed ${seed}`);
    } else if (scenarios === 1) output.line(line);
  }
  const verdict = `${scenarios - broken.length} of ${scenarios} scenarios kept every promise.\n`;
  output.report(verdict, { schema, seed: first, scenarios, broken });
  if (broken.length > 0) process.exitCode = exitCodes.failure.code;
}
