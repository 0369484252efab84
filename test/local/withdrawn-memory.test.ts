// Memory of this side that is deregistered while a transfer still has parts to post: none of them goes to other memory.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Agent, DescriptorList, type Registration } from 'weftline/agent';

/** More than twice what a connection has under way. */
const PARTS = 20_000;

function registerNew(agent: Agent, bytes: number, fill: number): Promise<Registration> {
  return agent.register(new Uint8Array(new SharedArrayBuffer(bytes)).fill(fill));
}

test('parts that were not posted yet do not go to memory that was registered in place of theirs', async () => {
  const options = { backends: ['multipath'], settings: { timeoutMs: 60_000 } } as const;
  await using reader = await Agent.create('reader', options);
  await using owner = await Agent.create('owner', options);
  const source = await registerNew(owner, PARTS, 1);
  const many = await registerNew(reader, 2 * PARTS, 2);
  const last = await registerNew(reader, PARTS, 3);
  await reader.loadRemoteMetadata(owner.localMetadata());
  // Blocks with gaps here do not join, and reads do not share packets: there are more requests than go out at once.
  const first = DescriptorList.blocks(many, { blockBytes: 1, stride: 2, count: PARTS - 1 });
  await using transfer = await reader.prepare({
    operation: 'read',
    peer: 'owner',
    local: first.concat(DescriptorList.of(last, 0, 1)),
    remote: DescriptorList.blocks(source, { blockBytes: 1, count: PARTS }),
  });
  transfer.post();
  await last.close();
  const other = await registerNew(reader, PARTS, 4);
  await assert.rejects(transfer.wait(), { code: 'WL_CLOSED' });
  assert.ok(
    other.bytes.every((byte) => byte === 4),
    'the new memory was written to',
  );
});
