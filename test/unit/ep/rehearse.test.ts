// What a rank that joins an EpLowLatency does beforehand: calls of it alone, of which nobody learns.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { LowLatencyConfig } from 'weftline/ep';
import { CpuDevice } from '#lib/device/cpu/cpu-device.js';
import { Deadline } from '#lib/core/deadline.js';
import { readSamples } from '#lib/core/metric-table.js';
import { addTraceSink, traceBegin } from '#lib/core/trace.js';
import { createCpuLowLatency, rehearsalConfig, rehearse } from '#lib/ep/low-latency/cpu/create-cpu-low-latency.js';
import { withLowLatencyDefaults } from '#lib/ep/low-latency/low-latency-size.js';
import { readSettings } from '#lib/settings/settings.js';
import type { RankGroup } from '#lib/world/rank-group.js';
import { SoloGroup } from '#lib/world/solo-group.js';

const usual = { maxTokensPerRank: 64, hidden: 1024, numExperts: 24, maxTopk: 8, elastic: true };
const configs: readonly (readonly [how: string, config: LowLatencyConfig])[] = [
  ['sums of ranks', usual],
  ['choices, few rows per expert', { ...usual, combineTravels: 'choices', overflow: 'drop', maxTokensPerExpert: 1 }],
  ['rows by rank', { ...usual, layout: 'rank-major' }],
  ['fixed ranks', { ...usual, elastic: false }],
  ['one choice of one expert', { ...usual, numExperts: 3, maxTopk: 1 }],
];

for (const [how, given] of configs) {
  test(`calls of one rank alone run to their end, are counted nowhere and leave no memory behind: ${how}`, async () => {
    const device = await CpuDevice.create({ addressSpaceMiB: 64 });
    const world = { worldRank: 2, machineRank: 2, settings: readSettings({}), filePrefix: '' } as RankGroup;
    const group = new SoloGroup(world);
    assert.deepEqual([group.ranks, group.topology.scaleUpRanks], [[2], [0]]);
    const small = rehearsalConfig(given, 3);
    assert.equal(small.numExperts, given.numExperts / 3);
    // The window may get memory that held something else.
    const former = device.empty('u8', [16 << 20]);
    former.view().fill(0x80);
    former.close();
    const used = device.space.used;
    const config = withLowLatencyDefaults(small, 1);
    const { scope, engine } = await createCpuLowLatency({ group, device, given: small, config }, wait());
    const points: string[] = [];
    const removeSink = addTraceSink({ begin: (point) => points.push(point), end: (point) => points.push(point) });
    const before = await readSamples();
    await rehearse(scope, engine);
    assert.deepEqual(await readSamples(), before);
    assert.deepEqual(points, []);
    traceBegin('ep.closing');
    assert.deepEqual(points, ['ep.closing']);
    removeSink();
    await engine.close();
    assert.equal(device.space.used, used);
  });
}

function wait() {
  return { deadline: new Deadline(60_000) };
}
