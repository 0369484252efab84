// The other process of the transport tests. Arguments: what to do, the port, settings as JSON; says "ready" once connected.
import { Transport, type Connection, type MemoryRegion } from 'weftline/transport';
import type { Settings } from 'weftline';

const [role, port, settingsText = '{}'] = process.argv.slice(2);
const settings = JSON.parse(settingsText) as Partial<Settings>;
const transport = await Transport.create({ name: 'the other process', settings });
const connection = await transport.connect({ host: '127.0.0.1', port: Number(port) });
const LARGEST = 8 << 20;

/** Sends back every message that comes, until one of a single byte. */
async function echo(on: Connection, region: MemoryRegion): Promise<void> {
  for (;;) {
    const bytes = await transport.wait(on.receive({ region }));
    await transport.wait(on.send({ region, bytes }));
    if (bytes === 1) return;
  }
}

/** Waits for a message that does not come. */
async function idle(on: Connection, region: MemoryRegion): Promise<void> {
  await transport.wait(on.receive({ region }));
}

/** Sends until it is killed. */
async function flood(on: Connection, region: MemoryRegion): Promise<never> {
  for (;;) await transport.wait(on.send({ region }));
}

/** Offers its memory to reads and writes; a message tells its name, the signal cell comes first in it. */
async function serveMemory(on: Connection): Promise<void> {
  const region = await transport.register(new Uint8Array(new SharedArrayBuffer(1 << 20)), { read: true, write: true });
  const name = await transport.register(Buffer.from(JSON.stringify(region.remote)));
  await transport.wait(on.send({ region: name }));
  const cell = new BigInt64Array(region.bytes.buffer, 0, 1);
  while (Atomics.load(cell, 0) === 0n) await new Promise((resolve) => setTimeout(resolve, 1));
  const sum = region.bytes.subarray(8, 8 + 100_000).reduce((total, byte) => total + byte, 0);
  console.log(JSON.stringify({ counter: Number(cell[0]), sum }));
  const done = await transport.register(new Uint8Array(64));
  await transport.wait(on.receive({ region: done }));
}

const region = await transport.register(new Uint8Array(new SharedArrayBuffer(LARGEST)));
console.log('ready');
if (role === 'echo') await echo(connection, region);
else if (role === 'flood') await flood(connection, region);
else if (role === 'memory') await serveMemory(connection);
else if (role === 'idle') await idle(connection, region).catch(() => {});
// The process then ends although its transport is open, and a request is pending.
else if (role === 'leave') connection.receive({ region });
if (role !== 'leave') await transport.close();
