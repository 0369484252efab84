// Rank 1 reads memory of rank 0 and sends it a message, over UDP. npx weftline run -n 2 transport.mjs
import assert from 'node:assert/strict';
import { Transport } from 'weftline/transport';
import { join } from 'weftline/world';

const world = await join();
if (world.size !== 2) throw new Error('start it with: npx weftline run -n 2 transport.mjs');
const transport = await Transport.create({ name: `rank ${world.rank}`, token: world.secret });
try {
  const memory = new Uint8Array(400_000).fill(10 + world.rank);
  // What peers that are told its name may do with it without asking: here they may read it, but not write to it.
  const region = await transport.register(memory, { read: true });

  if (world.rank === 0) {
    // Between hosts, `host` is an address of this host, and rank 1 connects to that address.
    const listener = await transport.listen({ host: '127.0.0.1', port: 0 });
    await world.store.setJson('transport', { port: listener.port, name: region.remote });
    const connection = await listener.accept({ timeoutMs: 10_000 });
    // Offers memory. The message is written straight into it, so it has no limit of size but this.
    const bytes = await transport.wait(connection.receive({ region }));
    console.log(`received ${bytes} bytes from ${connection.peerName}, the last one is ${memory.at(-1)}`);
    assert.ok(memory.every((byte) => byte === 77));
  } else if (world.rank === 1) {
    const { port, name } = await world.store.getJson('transport');
    const connection = await transport.connect({ host: '127.0.0.1', port });
    // Posting never waits; `wait` takes the end of what was posted. Rank 0 has nothing to do for a read.
    await transport.wait(connection.read({ region, ...name }));
    console.log(`read ${memory.length} bytes of rank 0, the last one is ${memory.at(-1)}`);
    assert.ok(memory.every((byte) => byte === 10));
    await transport.wait(connection.send({ region: await transport.register(memory.fill(77)) }));
  }
  await world.barrier('everything has arrived');
} finally {
  await transport.close();
  await world.close();
}
