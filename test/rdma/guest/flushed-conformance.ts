// In the guest: the cases of every backend of the agent, over verbs, where all memory of both sides is flushed as that of GPUs
// is which do not show what a device writes in its order.
import { after, before, describe } from 'node:test';
import { RdmaRegion } from '#lib/agent/rdma/rdma-region.js';
import { testConformance } from '../../local/support/agent-conformance.ts';

const preload = new URL('./support/flush-all.js', import.meta.url).href;

describe('all memory is flushed', async () => {
  const original = Object.getOwnPropertyDescriptor(RdmaRegion.prototype, 'isFlushed')!;
  const { NODE_OPTIONS } = process.env;
  before(async () => {
    await import('./support/flush-all.js');
    process.env['NODE_OPTIONS'] = `${NODE_OPTIONS ?? ''} --import=${preload}`;
  });
  after(() => {
    Object.defineProperty(RdmaRegion.prototype, 'isFlushed', original);
    if (NODE_OPTIONS === undefined) delete process.env['NODE_OPTIONS'];
    else process.env['NODE_OPTIONS'] = NODE_OPTIONS;
  });
  await testConformance({
    name: 'verbs, flushed',
    backend: 'verbs',
    here: { settings: { rdmaDevices: 'rxe0' } },
    there: { settings: { rdmaDevices: 'rxe1' } },
  });
});
