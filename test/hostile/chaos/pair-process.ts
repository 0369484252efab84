// A process of a pair: plays round after round as the driver says. A victim plays until it is killed.
import { setTimeout as sleep } from 'node:timers/promises';
import { describeUsage, usageOf } from '../../support/process-usage.ts';
import { AgentSide } from './agent-side.ts';
import { type DriverWords, ended, Round, say, WrongBytes } from './driver-link.ts';
import { TransportSide } from './transport-side.ts';

/** Threads and descriptors of what was closed are gone a moment later. */
const MAX_LOOKS = 40;

type RoundWords = Extract<DriverWords, { readonly do: 'round' }>;

async function play({ kind, name, seed, peer }: RoundWords, round: Round): Promise<string | undefined> {
  let wrong: string | undefined;
  const side = kind === 'transport' ? await TransportSide.open(name, seed) : await AgentSide.open(kind, name, seed);
  try {
    if (side instanceof TransportSide) await side.meet(round, name < peer);
    else await side.meet(round);
    await side.run(round);
    ended(side.operations);
    const told = await untilBothFinished(round, side.told);
    if (told !== undefined) await side.checkArrived(told);
  } catch (error) {
    if (error instanceof WrongBytes) wrong = error.message;
    ended(side.operations, error);
  } finally {
    await side[Symbol.asyncDispose]();
  }
  return wrong;
}

/** The peer may go on with what it has begun. Returns how many notifications it sent; undefined if it is gone or failed. */
async function untilBothFinished(round: Round, told: number): Promise<number | undefined> {
  round.tell({ told });
  try {
    return (await round.next<{ readonly told: number }>()).told;
  } catch {
    return undefined;
  }
}

async function settledUsage(): Promise<ReturnType<typeof usageOf>> {
  let usage = usageOf();
  for (let look = 0, same = 0; look < MAX_LOOKS && same < 4; look++) {
    await sleep(5);
    const now = usageOf();
    same = now.descriptors === usage.descriptors && now.threads === usage.threads ? same + 1 : 0;
    usage = now;
  }
  return usage;
}

let round = new Round();
process.on('message', (words: DriverWords) => {
  if (words.do === 'exit') process.exit(0);
  if (words.do !== 'round') {
    round.take(words);
    return;
  }
  round = new Round();
  void play(words, round).then(async (wrong) => {
    const usage = await settledUsage();
    say({ tell: 'left', usage, what: describeUsage(), ...(wrong === undefined ? {} : { wrong }) });
  });
});
process.on('disconnect', () => process.exit(0));
