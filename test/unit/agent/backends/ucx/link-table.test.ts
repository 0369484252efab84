// Links of a UCX worker that cannot be opened, with a worker that is only pretended: nothing of them stays.
import assert from 'node:assert/strict';
import { fstatSync, openSync } from 'node:fs';
import test from 'node:test';
import { LinkTable } from '#lib/agent/backends/ucx/link-table.js';
import type { ProcessWatch } from '#lib/agent/backends/ucx/process-watch.js';
import type { RemoteRegions } from '#lib/agent/backends/ucx/remote-regions.js';
import type { UcxContext } from '#lib/agent/backends/ucx/ucx-context.js';
import type { UcxEngine } from '#lib/agent/backends/ucx/ucx-engine.js';

function refuse(): never {
  throw new Error('refused');
}

for (const failing of ['map', 'connect'] as const) {
  test(`the descriptor of the peer's process is closed when UCX refuses to ${failing}`, () => {
    const block = { ownMemory: [0], endpoint: [0], words: new Int32Array(64), inState: new Int32Array(4), lostWord: 0 };
    const engine = { tables: { linkAddress: [] }, block: () => block } as unknown as UcxEngine;
    const context = { map: () => 1, connect: () => 1, [failing]: refuse } as unknown as UcxContext;
    const transports = { config: {}, tuning: {}, isMemoryOnly: true, usesDevices: false, putsAreNative: false };
    const table = new LinkTable(engine, {
      context,
      remotes: {} as RemoteRegions,
      processes: {} as ProcessWatch,
      transports,
    });
    const process = openSync('/dev/null', 'r');
    const names = { number: table.reserve(), remoteNumber: 1, peer: 'b', secretLow: 1, secretHigh: 2 };
    assert.throws(() => table.open({ ...names, address: new Uint8Array(8), process }), /refused/);
    assert.throws(() => fstatSync(process), { code: 'EBADF' });
  });
}
