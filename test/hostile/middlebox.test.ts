// The transport and the agent between two hosts whose network loses, doubles, delays and changes packets.
// WEFTLINE_TEST_MIDDLEBOX: how many times as much traffic as in the gate; WEFTLINE_TEST_EXTENT=whole: every impairment.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { skipWithout } from '../local/support/requirements.ts';
import { isWhole } from '../support/extent.ts';
import { testSeed } from '../support/seed.ts';
import { type Impairment, Network, repairUdp } from './middlebox/impairment.ts';
import type { MiddleboxCase, MiddleboxOutcome } from './middlebox/run.ts';
import { whyNoTwoHosts } from './middlebox/two-hosts.ts';

const seed = testSeed();
const times = Number(process.env['WEFTLINE_TEST_MIDDLEBOX'] ?? 1);
const script = fileURLToPath(new URL('./middlebox/run.js', import.meta.url));
const skip = skipWithout('tun', whyNoTwoHosts());

const all = { loss: 0.01, duplication: 0.02, reordering: 0.05, corruption: 0.01, repair: true } as const;
const impairments: Readonly<Record<string, Impairment>> = {
  'no harm': {},
  '1 % is lost': { loss: 0.01 },
  '5 % are lost': { loss: 0.05 },
  '2 % come twice': { duplication: 0.02 },
  '5 % are overtaken': { reordering: 0.05 },
  '1 % is changed, which UDP finds': { corruption: 0.01 },
  '1 % is changed, which UDP does not find': { corruption: 0.01, repair: true },
  'all of it': all,
  'all of it, packets are authenticated': all,
  'all of it, TCP too': { ...all, repair: false, tcp: true },
};

function casesOf(kind: 'transport' | 'agent', names: readonly string[]): MiddleboxCase[] {
  return names.map((name, index) => {
    const impairment = impairments[name] as Impairment;
    // Where UDP's checksum says nothing, ours must cover the payload.
    const transportAuthentication = name.endsWith('authenticated');
    const transportChecksum = impairment.repair === true && !transportAuthentication ? 'full' : 'header';
    const settings = { timeoutMs: 160_000, transportChecksum, transportAuthentication } as const;
    return {
      name,
      impairment,
      traffic: { kind, seed: seed + index, rounds: 16 * times, settings },
      timeoutMs: 180_000 * times,
    };
  });
}

function runAll(cases: readonly MiddleboxCase[]): MiddleboxOutcome[] {
  const { stdout, stderr } = spawnSync('unshare', ['-n', process.execPath, script, JSON.stringify(cases)], {
    encoding: 'utf8',
    timeout: 600_000 * times,
    env: { ...process.env, NODE_TEST_CONTEXT: undefined },
  });
  const outcomes = stdout
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as MiddleboxOutcome);
  assert.equal(outcomes.length, cases.length, stderr);
  return outcomes;
}

for (const kind of ['transport', 'agent'] as const) {
  const sample = Object.keys(impairments).filter((name) => isWhole || !['no harm', '1 % is lost'].includes(name));
  const names = kind === 'transport' ? sample : ['5 % are lost', 'all of it, packets are authenticated'];
  test(
    `every byte of the ${kind} arrives through a bad network`,
    { skip, timeout: 700_000 * times },
    async (context) => {
      const cases = casesOf(kind, names);
      for (const [index, outcome] of runAll(cases).entries()) {
        const { name, impairment } = cases[index] as MiddleboxCase;
        await context.test(name, () => {
          assert.equal(outcome.error, undefined);
          const { counts, results } = outcome;
          assert.ok((results.here?.bytes ?? 0) > 0 && results.here?.bytes === results.there?.bytes);
          // The network really did what it was to do.
          assert.equal(counts.lost > 0, (impairment.loss ?? 0) > 0, JSON.stringify(counts));
          assert.equal(counts.doubled > 0, (impairment.duplication ?? 0) > 0, JSON.stringify(counts));
          assert.equal(counts.late > 0, (impairment.reordering ?? 0) > 0, JSON.stringify(counts));
          assert.equal(counts.changed > 0, (impairment.corruption ?? 0) > 0, JSON.stringify(counts));
          if (kind !== 'transport' || impairment.repair !== true) return;
          const reason = name.endsWith('authenticated') ? 'tag' : 'checksum';
          const drops = (results.here?.drops[reason] ?? 0) + (results.there?.drops[reason] ?? 0);
          assert.ok(drops > 0, `no changed packet reached the ${reason}`);
        });
      }
    },
  );
}

test('the middlebox does the same again with the same seed, and its checksums are right', () => {
  const packet = Buffer.from('4500002400004000401126880a4700010a47000213881389001000000102030405060708', 'hex');
  repairUdp(packet, 20);
  const right = packet.readUInt16BE(26);
  const sums = [0, 1].map(() => {
    const network = new Network(7);
    network.set({ ...all, corruption: 0.5, loss: 0.3 });
    return Array.from({ length: 200 }, () =>
      network.pass(packet).map(({ packet: copy, afterMs }) => [copy.toString('hex'), afterMs]),
    );
  });
  assert.deepEqual(sums[0], sums[1]);
  // The sum over pseudo header and packet, its checksum included, is all ones.
  let sum = 17 + packet.readUInt16BE(24);
  for (let at = 12; at < packet.length; at += 2) sum += packet.readUInt16BE(at);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  assert.equal(sum, 0xffff);
  assert.notEqual(right, 0);
});
