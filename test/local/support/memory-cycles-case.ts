// The same case for every backend of the agent: memory that is used and taken back again and again leaves nothing behind.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { Agent, type Registration } from 'weftline/agent';
import type { AgentConfiguration } from './agent-configurations.ts';
import type { Cycle } from './cycle-peer.ts';
import { whyMissing } from './missing-backend.ts';
import { nextMessage } from './next-message.ts';
import { type ProcessUse, processUse } from './process-use.ts';
import { isWhole } from '../../support/extent.ts';

const script = fileURLToPath(new URL('cycle-peer.js', import.meta.url));
const CYCLES = Number(process.env['WEFTLINE_TEST_CYCLES'] ?? (isWhole ? 200 : 60));
/** Until everything that is made once has been made. */
const WARM_UP = 40;
const ALLOCATED_BYTES = 1 << 20;
const PLAIN_BYTES = 1 << 16;
/** Links give up what was taken back when they next look. */
const SLACK = 4;
const SLACK_KIB = 64 << 10;

function assertFlat(side: string, before: ProcessUse, after: ProcessUse): void {
  const text = `${side}: ${JSON.stringify(before)} became ${JSON.stringify(after)}`;
  for (const what of ['descriptors', 'mappings', 'threads'] as const) {
    assert.ok(after[what] <= before[what] + SLACK, `${what} of the ${text}`);
  }
  for (const what of ['sharedKiB', 'privateKiB'] as const) {
    assert.ok(after[what] <= before[what] + SLACK_KIB, `${what} of the ${text}`);
  }
}

/** Registers the test. */
export async function testMemoryCycles({ name: title, backend, here, there }: AgentConfiguration): Promise<void> {
  const skip = (await whyMissing(backend)) ?? false;

  test(`${title}: ${CYCLES} cycles of memory leave nothing behind on either side`, { skip }, async () => {
    await using owner = await Agent.create('owner', { ...here, backends: [backend], token: 'secret' });
    const child = fork(script, [JSON.stringify({ ...there, backends: [backend] })], { serialization: 'advanced' });
    try {
      await nextMessage(child);
      let before: readonly ProcessUse[] = [];
      let after: readonly ProcessUse[] = [];
      let gone: Registration[] = [];
      for (let cycle = 0; cycle < WARM_UP + CYCLES; cycle += 1) {
        const regions = [
          await owner.allocate(ALLOCATED_BYTES, { name: `allocated ${cycle}` }),
          await owner.register(new Uint8Array(PLAIN_BYTES), { name: `plain ${cycle}` }),
        ];
        // The peer hears that memory is gone from whole metadata, from what they withdraw, or some cycles later.
        const hasAll = cycle % 3 === 0;
        const withdrawn = cycle % 3 === 1 ? gone : [];
        const blob = hasAll ? owner.localMetadata() : owner.localMetadata({ regions, withdrawn });
        const names = regions.map(({ name }) => name);
        child.send({ blob, names } satisfies Cycle);
        const use = await nextMessage<ProcessUse & { readonly regions: number }>(child);
        if (hasAll) assert.equal(use.regions, regions.length);
        if (hasAll || withdrawn.length > 0) gone = [];
        for (const region of regions) await region.close();
        gone.push(...regions);
        if (cycle === WARM_UP) before = [processUse(), use];
        after = [processUse(), use];
      }
      const [ownBefore, peerBefore] = before as [ProcessUse, ProcessUse];
      const [ownAfter, peerAfter] = after as [ProcessUse, ProcessUse];
      assertFlat('owner', ownBefore, ownAfter);
      assertFlat('peer', peerBefore, peerAfter);
    } finally {
      child.kill('SIGKILL');
    }
  });
}
