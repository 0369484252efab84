// A rank of a job that dispatches, combines and meets in the store, over and over, until one of them is lost.
// Argument: how many times; 0 for ever. Prints "running", then JSON of how it ended.
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { CpuDevice, type Tensor } from 'weftline';
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { describeUsage, type ProcessUsage, usageOf } from '../../support/process-usage.ts';
import { Random } from '../fuzz/random.ts';
import { chaosSettings } from './chaos-settings.ts';
import { encodeError, type EncodedError } from '#lib/core/errors.js';

export interface RankOutcome {
  readonly rank: number;
  readonly rounds: number;
  readonly error?: EncodedError;
  readonly wrong?: string;
  readonly before: ProcessUsage;
  readonly after: ProcessUsage;
  readonly what: string;
}

console.log(`pid ${process.pid}`);
const given = Number(process.argv[2] ?? 0);
const times = given === 0 ? Number.POSITIVE_INFINITY : given;
const [tokens, hidden, topk, experts] = [64, 512, 4, 12];
const world = await join({ settings: chaosSettings });
const random = new Random(world.rank + 1);
let digest: string | undefined;
let rounds = 0;
let wrong: string | undefined;

/** Everything that is made for the job, so that nothing of it is left behind. */
async function run(): Promise<void> {
  await using device = await CpuDevice.create();
  const config = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk };
  await using buffer = await EpBuffer.create(world, device, config);
  const options = { maxTokensPerRank: tokens, hidden, maxTopk: topk, numExperts: experts };
  await using layer = await EPAll2AllLayer.create(world, device, options);
  const values = Uint16Array.from({ length: tokens * hidden }, () => random.next() * 0x7f00);
  using x = await device.tensor('bf16', [tokens, hidden], values);
  const ids = Int32Array.from(
    { length: tokens * topk },
    (_, at) => ((at >> 2) * 5 + (at & 3) * 3 + world.rank) % experts,
  );
  using topkIdx = await device.tensor('i32', [tokens, topk], ids);
  for (; rounds < times; rounds++) {
    const hash = createHash('sha256');
    const add = async (tensor: Tensor): Promise<void> => void hash.update(await tensor.toHost());
    const { recvX, handle } = await buffer.dispatch({ x, topkIdx });
    await add(recvX);
    const { combinedX } = await buffer.combine({ x: recvX, handle });
    await add(combinedX);
    handle.close();
    combinedX.close();
    const { recvX: output, handle: rows } = await layer.dispatch({ x, topkIdx });
    await add(output);
    const combined = await layer.combine({ x: output, handle: rows });
    await add(combined);
    rows.close();
    combined.close();
    if (random.chance(0.2)) await sleep(random.below(4));
    if (rounds % 4 === 0) await world.barrier(`round ${rounds}`);
    if (rounds % 8 === 0) await world.allGather(`rounds ${rounds}`, world.rank);
    const now = hash.digest('hex');
    digest ??= now;
    if (now !== digest) wrong = `round ${rounds} gave other bytes than round 0`;
    if (rounds === 0) console.log('running');
  }
}

const before = usageOf();
let error: EncodedError | undefined;
try {
  await run();
} catch (cause) {
  error = encodeError(cause);
  delete (error as { stack?: string }).stack;
}
const after = usageOf();
const outcome: RankOutcome = {
  rank: world.rank,
  rounds,
  ...(error === undefined ? {} : { error }),
  ...(wrong === undefined ? {} : { wrong }),
  before,
  after,
  what: describeUsage(),
};
console.log(JSON.stringify(outcome));
await world.close().catch(() => {});
process.exit(0);
