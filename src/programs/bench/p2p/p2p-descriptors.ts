// One transfer of very many small blocks in no order: what it takes to describe, prepare and move it.
import { DescriptorList } from '../../../agent/index.ts';
import { monotonicMicroseconds } from '../harness.ts';
import { MEMORY_NAMES } from './p2p-phases.ts';
import type { DescriptorsResult } from './p2p-results.ts';
import type { P2pSession } from './p2p-session.ts';
import { DESCRIPTOR_BYTES, DESCRIPTOR_STRIDE } from './p2p-workload.ts';

/** Neighbours of the list are far from each other in memory, so that nothing is joined. */
const STEP = 7919;

export async function runDescriptors(
  session: P2pSession,
  { mode, count }: { readonly mode: 'write' | 'read'; readonly count: number },
): Promise<DescriptorsResult> {
  const { memory, connection, endpoint } = session;
  const { peer, backend } = connection;
  const blocks = { blockBytes: DESCRIPTOR_BYTES, stride: DESCRIPTOR_STRIDE, count };
  const theirs = await session.remote(MEMORY_NAMES.server);
  const order = Uint32Array.from({ length: count }, (_, index) => (index * STEP) % count);
  const residentBefore = process.memoryUsage().rss;
  const begin = monotonicMicroseconds();
  const local = DescriptorList.blocks(memory, blocks).select(order);
  const remote = DescriptorList.blocks(theirs, blocks).select(order);
  const listed = monotonicMicroseconds();
  await using transfer = await endpoint.agent.prepare({ operation: mode, peer, backend, local, remote });
  const prepared = monotonicMicroseconds();
  const residentBytes = process.memoryUsage().rss - residentBefore;
  const posting = monotonicMicroseconds();
  transfer.post();
  const posted = monotonicMicroseconds();
  await transfer.wait();
  return {
    count,
    parts: transfer.telemetry.parts,
    listMilliseconds: (listed - begin) / 1000,
    prepareMilliseconds: (prepared - listed) / 1000,
    postMilliseconds: (posted - posting) / 1000,
    moveMilliseconds: (monotonicMicroseconds() - posting) / 1000,
    residentBytes,
  };
}
