// Blocks read from a process that reuses them, damages them, is stopped, is killed and begins anew: what is handed out is always what
// belongs under its key. 150,000 reads with WEFTLINE_TEST_EXTENT=whole, some in the gate.
import assert from 'node:assert/strict';
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { KvReader, type KvTicket } from 'weftline/kv';
import { seededRandom } from '#lib/core/seeded-random.js';
import { isWhole, sampled } from '../support/extent.ts';
import { testSeed } from '../support/seed.ts';
import { until } from '../support/until.ts';
import { isContent, openSide } from './support/kv-content.ts';
import type { ProducerOrder, ProducerWord } from './support/kv-producer.ts';

const script = fileURLToPath(new URL('support/kv-producer.js', import.meta.url));
const READS = isWhole ? 50_000 : 1200;
/** Reads between two deaths of the producer. */
const READS_PER_LIFE = isWhole ? 2000 : 400;
const BLOCKS = 16;
const KEPT_TICKETS = 60;

for (const path of sampled(['local', 'multipath', 'staged'] as const, 2)) {
  test(`${path}: a miss, never a wrong hit`, { timeout: 1_800_000 }, async () => {
    const seed = testSeed();
    const random = seededRandom(seed);
    const below = (count: number): number => Math.floor(random() * count);
    const side = await openSide('consumer', path, { order: 'blocks-first', blocks: BLOCKS });
    const reader = await KvReader.create(side.agent, { blocks: BLOCKS, parts: side.parts });
    const tickets: KvTicket[] = [];
    const tally = new Map<string, number>();
    const so = { reads: 0, wrong: 0, lives: 0 };
    let child: ChildProcess | undefined;

    const start = async (): Promise<void> => {
      const order: ProducerOrder = { seed: seed + ++so.lives, path };
      const env = { ...process.env, NODE_TEST_CONTEXT: undefined };
      const next = fork(script, { serialization: 'advanced', env, execArgv: [] });
      child = next;
      next.send(order);
      const [{ metadata }] = (await once(next, 'message')) as [{ readonly metadata: Uint8Array }];
      await side.agent.loadRemoteMetadata(metadata);
      next.on('message', (word: ProducerWord) => {
        if (!('ticket' in word)) return;
        tickets.push(word.ticket);
        // Some stay, of this life and of earlier ones.
        if (tickets.length > KEPT_TICKETS) tickets.splice(below(KEPT_TICKETS), 1);
      });
      await until(() => tickets.length > 5);
    };

    const read = async (): Promise<void> => {
      const ticket = tickets[random() < 0.5 ? tickets.length - 1 : below(tickets.length)]!;
      const lease = reader.open(ticket);
      const places = Array.from({ length: BLOCKS }, (_, block) => block)
        .map((block) => ({ block, key: random() }))
        .toSorted((a, b) => a.key - b.key)
        .slice(0, ticket.keys.length)
        .map(({ block }) => block);
      if (random() < 0.1) await lease.renew({ timeoutMs: 1000 });
      const results = await lease.read(places, { timeoutMs: 1000 });
      for (const [index, result] of results.entries()) {
        assert.equal(result.key, ticket.keys[index]);
        if (result.isHit && !isContent(side, result.block, result.key)) so.wrong++;
        const outcome = result.isHit ? 'hit' : result.reason;
        tally.set(outcome, (tally.get(outcome) ?? 0) + 1);
        if (outcome === 'failed') console.log(`failed: ${!result.isHit && result.error?.message}`);
      }
      so.reads += results.length;
      if (random() < 0.3) await lease.release({ timeoutMs: 1000 });
      // Reads within a host may need no turn of the event loop, which tickets and timers do.
      await new Promise((resolve) => setImmediate(resolve));
    };

    try {
      while (so.reads < READS) {
        await start();
        for (const begin = so.reads; so.reads < Math.min(READS, begin + READS_PER_LIFE);) {
          if (random() < 0.01) {
            // Stopped in the middle of whatever it does.
            child?.kill('SIGSTOP');
            const going = sleep(below(30)).then(() => child?.kill('SIGCONT'));
            await read();
            await going;
          }
          await read();
          if (random() < 0.05) await sleep(below(30));
        }
        const gone = once(child!, 'exit');
        const killing = sleep(below(5)).then(() => child?.kill('SIGKILL'));
        while (child!.exitCode === null && child!.signalCode === null) await read();
        await killing;
        await gone;
        for (let again = 0; again < 5; again++) await read();
      }
    } finally {
      child?.kill('SIGKILL');
      await side.agent.close();
    }
    const outcomes = [...tally].toSorted(([, a], [, b]) => b - a).map(([outcome, count]) => `${outcome} ${count}`);
    console.log(`${so.reads} reads in ${so.lives} lives: ${outcomes.join(', ')}; wrong ${so.wrong}`);
    assert.equal(so.wrong, 0);
    for (const outcome of ['hit', 'stale', 'lease-expired', 'corrupt', 'restarted', 'peer-lost']) {
      assert.ok(tally.has(outcome), `${outcome} did not occur: ${outcomes.join(', ')}`);
    }
  });
}
