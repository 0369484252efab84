// What does not fit is refused before anything is taken, with what each part takes.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { CpuDevice } from 'weftline';
import type { RankGroup } from 'weftline/world';
import { AddressSpace } from '#lib/device/cpu/cpu-device.js';
import { checkMemoryBudget } from '#lib/windows/memory-budget.js';
import { withCode } from '../../support/with-code.ts';

const MIB = 1_048_576;
const parts = [
  { name: 'windows', bytes: 100 * MIB, isShared: true },
  { name: 'network side', bytes: 300 * MIB, isShared: false },
];

/** A rank of a host with so many ranks, of two hosts. */
function groupOf(ranks: number, reserveSharedMemory = true): RankGroup {
  const scaleUpRanks = Array.from({ length: ranks }, (_, rank) => rank);
  const topology = { scaleUpRanks, hosts: [scaleUpRanks, [ranks]] };
  return { topology, settings: { reserveSharedMemory } } as unknown as RankGroup;
}

function deviceWith(mib: number): CpuDevice {
  return { space: new AddressSpace(0, mib * MIB) } as unknown as CpuDevice;
}

const enough = { sharedFree: 10_000 * MIB, memoryFree: 10_000 * MIB };

test('what fits is let through, to the last byte', () => {
  // Two windows and their header, and what is this rank's own.
  const device = { space: new AddressSpace(0, 500 * MIB + 65_536) } as unknown as CpuDevice;
  checkMemoryBudget('EpBuffer', parts, { group: groupOf(2), device, room: enough });
  const room = { sharedFree: 200 * MIB + 65_536, memoryFree: 800 * MIB + 65_536 };
  checkMemoryBudget('EpBuffer', parts, { group: groupOf(2), device, room });
});

test('too little address space: every part with what it takes, and what is there', () => {
  const device = deviceWith(500);
  assert.throws(
    () => checkMemoryBudget('EpBuffer', parts, { group: groupOf(2), device, room: enough }),
    withCode(
      'WL_MEMORY',
      /^EpBuffer needs 500.1 MiB of this rank's address space: 2 windows of 100 MiB \(one per rank of this host\) need 200.1 MiB, the network side needs 300 MiB; 0 B of 500 MiB are in use/,
    ),
  );
  assert.equal(device.space.used, 0);
});

test('too little /dev/shm: the windows of all ranks of the host count, and no part that is not shared', () => {
  assert.throws(
    () =>
      checkMemoryBudget('EpBuffer', parts, {
        group: groupOf(2),
        device: deviceWith(4000),
        room: { ...enough, sharedFree: 200 * MIB },
      }),
    withCode('WL_SHARED_MEMORY', /\/dev\/shm has 200 MiB free, 2 windows of .* need 200.1 MiB: enlarge it/),
  );
});

test('too little memory: what each rank has of its own counts for all ranks of the host; not without reservation', () => {
  const of = { device: deviceWith(4000), room: { ...enough, memoryFree: 800 * MIB } };
  assert.throws(
    () => checkMemoryBudget('EpBuffer', parts, { ...of, group: groupOf(2) }),
    withCode(
      'WL_MEMORY',
      /needs 800.1 MiB of this host's memory: .*, the network side needs 600 MiB for 2 ranks; 800 MiB are available/,
    ),
  );
  checkMemoryBudget('EpBuffer', parts, { ...of, group: groupOf(2, false) });
});
