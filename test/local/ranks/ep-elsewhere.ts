// Combines of rows that lie elsewhere than where peers read them: apart, over the result, and over the window's
// own rows; argv: columns.
import { type CpuDevice, Tensor } from 'weftline';
import { EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { openTestDevice } from '../support/test-device.ts';
import { random } from './ep-case.js';

const HIDDEN = Number(process.argv[2] ?? 64);
const TOKENS = 24;
const TOPK = 2;
const ROUNDS = HIDDEN < 1000 ? 20 : 4;

await using world = await join();
await using device = (await openTestDevice(world)) as CpuDevice;
const next = random(100 + world.rank);
const shape = { maxTokensPerRank: TOKENS, hidden: HIDDEN, numExperts: 2 * world.size, maxTopk: TOPK };
await using buffer = await EpBuffer.create(world, device, { ...shape, combineRows: 'shared' });

/** Small whole numbers as bf16, whose sums are exact. */
function numbers(count: number): Uint16Array {
  return Uint16Array.from(
    { length: count },
    () => new Uint32Array(Float32Array.of(Math.floor(next() * 8)).buffer)[0]! >>> 16,
  );
}

for (let round = 0; round < ROUNDS; round++) {
  const tokens = Math.floor(next() * (TOKENS + 1));
  const first = Array.from({ length: tokens }, () => Math.floor(next() * 2 * world.size));
  const choices = first.flatMap((expert) => [expert, next() < 0.3 ? -1 : (expert + 1) % (2 * world.size)]);
  const topkIdx = await device.tensor('i32', [tokens, TOPK], Int32Array.from(choices));
  const x = await device.tensor('bf16', [tokens, HIDDEN], numbers(tokens * HIDDEN));
  const { handle } = await buffer.dispatch({ x, topkIdx });
  const { rows } = handle;
  const values = numbers(rows * HIDDEN);
  const placed = buffer.combineInput(handle);
  placed.view().set(values);
  const wanted = (await buffer.combine({ x: placed, handle })).combinedX;
  const check = async (what: string, input: Tensor<'bf16'>, out?: Tensor<'bf16'>): Promise<void> => {
    input.view().set(values);
    const { combinedX } = await buffer.combine({ x: input, handle, ...(out && { out }) });
    const want = wanted.view();
    const at = combinedX.view().findIndex((value, index) => value !== want[index]);
    if (at !== -1) throw new Error(`round ${round}, rank ${world.rank}: rows ${what} give another sum at ${at}`);
  };
  await check('apart', device.empty('bf16', [rows, HIDDEN]));
  const both = device.empty('bf16', [tokens + rows + 2, HIDDEN]);
  await check('over the result', both.slice(0, rows), both.slice(0, tokens));
  await check('behind the begin of the result', both.slice(1, rows + 1), both.slice(0, tokens));
  await check('before the begin of the result', both.slice(0, rows), both.slice(1, tokens + 1));
  // Where peers read, but for a row.
  const { storage, address } = placed;
  const further = address - storage.address + HIDDEN * 2;
  const hasRoom = rows < buffer.size.maxRecvTokens;
  const shifted = hasRoom ? new Tensor(storage, 'bf16', [rows, HIDDEN], further) : device.empty('bf16', [rows, HIDDEN]);
  await check('a row further in the window', shifted);
  handle.close();
}
await buffer.barrier();
