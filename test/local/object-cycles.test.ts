// Objects that have threads, made and closed again and again: the same threads serve them, and nothing else is left.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';
import { CpuDevice } from 'weftline';
import { Agent, Endpoint } from 'weftline/agent';
import { ExpertMover, expertPlan } from 'weftline/ep/placement';
import { Transport } from 'weftline/transport';
import { join } from 'weftline/world';

const WARM_UP = 4;
const CYCLES = 12;
/** Bytes of a page of V8's heaps, which come and go by pages. */
const HEAP_PAGE = 256 << 10;

const world = await join({ environment: {} });
const device = await CpuDevice.create();
const plan = expertPlan({ layers: 1, ranks: 1, experts: 1, physicalToLogical: [0] });

/** What each makes is closed at once. */
const kinds: Readonly<Record<string, () => Promise<AsyncDisposable>>> = {
  Agent: () => Agent.create('cycle', { token: 'cycles' }),
  Endpoint: () => Endpoint.create({ token: 'cycles' }),
  Transport: () => Transport.create({ name: 'cycle', token: 'cycles' }),
  ExpertMover: () => ExpertMover.create(world, device, { plan, expertBytes: 64, load: () => undefined }),
};

function mappings(): number {
  const lines = readFileSync('/proc/self/maps', 'utf8').split('\n');
  return lines.filter((line) => {
    const [, from, to, path] = /^(\w+)-(\w+) \S+ \w+ \S+ \d+ *(.*)/.exec(line) ?? [];
    return from !== undefined && !(path === '' && Number(`0x${to}`) - Number(`0x${from}`) === HEAP_PAGE);
  }).length;
}

async function cycle(make: () => Promise<AsyncDisposable>, count: number): Promise<void> {
  for (let number = 0; number < count; number++) await (await make())[Symbol.asyncDispose]();
}

function held(): readonly [threads: readonly string[], descriptors: number] {
  return [readdirSync('/proc/self/task'), readdirSync('/proc/self/fd').length];
}

for (const [kind, make] of Object.entries(kinds)) {
  test(`${CYCLES} ${kind} objects leave no thread, descriptor or mapping behind`, async () => {
    await cycle(make, WARM_UP);
    const [before, mapped] = [held(), mappings()];
    await cycle(make, CYCLES);
    assert.deepEqual(held(), before);
    assert.ok(mappings() < mapped + 2 * CYCLES, `${mapped} mappings became ${mappings()}`);
  });
}

test.after(() => world.close());
