// The objects of a rank share one agent to other hosts: no further sockets, and none of them falls with another.
import assert from 'node:assert/strict';
import test from 'node:test';
import { resultOf, runRanks } from './support/run-ranks.ts';
import { environmentOf, topologies } from './support/topologies.ts';
import { isWhole } from '../support/extent.ts';

const script = new URL('./ranks/ep-shared-agent.js', import.meta.url);

interface Heard {
  readonly code?: string;
  readonly message?: string;
  /** Sockets that the second buffer opened. */
  readonly more: number;
}

for (const topology of topologies.filter(({ name }) => name === '2×2' || (isWhole && name === '4×1'))) {
  const options = { env: environmentOf(topology) };
  const all = Array.from({ length: topology.ranks }, (_, rank) => rank);

  test(`${topology.name}: rank 1 closes one of two buffers; the other ranks hear so in its next call, and the other buffer goes on`, async () => {
    const { exitCode, ranks, transcript } = await runRanks(topology.ranks, script, { ...options, args: ['closes'] });
    assert.equal(exitCode, 0, transcript);
    for (const rank of all) {
      const { code, message, more } = resultOf(ranks[rank]) as Heard;
      assert.equal(more, 0, transcript);
      if (rank === 1) continue;
      assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(code ?? ''), transcript);
      assert.match(message ?? '', /[Rr]ank 1\b/, transcript);
    }
  });

  test(`${topology.name}: rank 1 gives up one of two buffers, and the other one goes on`, async () => {
    const { exitCode, ranks, transcript } = await runRanks(topology.ranks, script, { ...options, args: ['gives up'] });
    assert.equal(exitCode, 0, transcript);
    for (const rank of all) {
      const { code, message, more } = resultOf(ranks[rank]) as Heard;
      assert.equal(more, 0, transcript);
      if (rank === 1) assert.equal(code, 'WL_TIMEOUT', transcript);
      else assert.match(message ?? '', /Rank \d.* gave up/, transcript);
    }
  });
}
