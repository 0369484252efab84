// Transfers of 200,000 parts between many regions, in no order, on every backend. Their cost grows with their number, no faster.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Agent, DescriptorList, type Registration } from 'weftline/agent';
import { backendNames } from '#lib/agent/backends/backend-table.js';
import { whyMissing } from './support/missing-backend.ts';

const REGIONS = 40;
const PARTS = 200_000;
const PART = 8;
const STRIDE = 16;
const PER_REGION = PARTS / REGIONS;

/** Parts of one region, one behind the other in the list. */
const RUN = 4;

/** Part i is the same place on both sides: region by region in turn, and within a region in no order. */
function placeOf(part: number): { readonly region: number; readonly offset: number } {
  const inRegion = Math.floor(part / (RUN * REGIONS)) * RUN + (part % RUN);
  return { region: Math.floor(part / RUN) % REGIONS, offset: ((inRegion * 1999) % PER_REGION) * STRIDE };
}

function listOf(regions: readonly { readonly address: number }[], parts: readonly number[]): DescriptorList {
  const addresses = Float64Array.from(parts, (part) => {
    const { region, offset } = placeOf(part);
    return (regions[region] as { readonly address: number }).address + offset;
  });
  return new DescriptorList('host', addresses, new Float64Array(parts.length).fill(PART));
}

function allocate(agent: Agent): Promise<Registration[]> {
  return Promise.all(Array.from({ length: REGIONS }, () => agent.allocate(PER_REGION * STRIDE)));
}

for (const backend of backendNames) {
  const skip = (await whyMissing(backend)) ?? false;

  test(`${backend}: 200,000 parts between 40 regions are written and read`, { skip }, async () => {
    const options = { backends: [backend], settings: { timeoutMs: 60_000 } };
    await using here = await Agent.create('here', options);
    await using there = await Agent.create('there', options);
    const [ours, theirs] = [await allocate(here), await allocate(there)];
    await here.loadRemoteMetadata(there.localMetadata());
    const remotes = here.remoteMemory('there');
    const parts = Array.from({ length: PARTS }, (_, index) => index);
    // Some ranges twice: what is moved last is the same.
    parts.push(...parts.slice(0, 1000));
    const all = { local: listOf(ours, parts), remote: listOf(remotes, parts) };
    // Some paths ask for each part of a read: fewer do.
    const some = Uint32Array.from({ length: PARTS / 10 }, (_, index) => index * 10);
    for (const operation of ['write', 'read'] as const) {
      const [from, to] = operation === 'write' ? [ours, theirs] : [theirs, ours];
      const lists = operation === 'write' ? all : { local: all.local.select(some), remote: all.remote.select(some) };
      const isMoved = to.map(({ length }) => new Uint8Array(length / STRIDE).fill(operation === 'write' ? 1 : 0));
      for (const part of operation === 'write' ? [] : some) {
        const { region, offset } = placeOf(part);
        (isMoved[region] as Uint8Array)[offset / STRIDE] = 1;
      }
      for (const [number, region] of from.entries()) {
        for (let at = 0; at < region.bytes.length; at += 1) region.bytes[at] = (at * 7 + number * 13) % 251;
      }
      for (const region of to) region.bytes.fill(255);
      await using transfer = await here.prepare({ operation, peer: 'there', ...lists });
      assert.equal(transfer.telemetry.parts, lists.local.length);
      transfer.post();
      await transfer.wait();
      let wrong = 0;
      for (const [number, region] of to.entries()) {
        for (let at = 0; at < region.bytes.length; at += 1) {
          const isIts = at % STRIDE < PART && isMoved[number]?.[Math.floor(at / STRIDE)] === 1;
          const expected = isIts ? (at * 7 + number * 13) % 251 : 255;
          if (region.bytes[at] !== expected) wrong += 1;
        }
      }
      assert.equal(wrong, 0);
    }
  });
}
