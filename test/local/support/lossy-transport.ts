// Two transports in a network of their own that harms packets. Argument: JSON of what happens, and settings. Prints JSON.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import type { Settings } from 'weftline';
import { Transport } from 'weftline/transport';

export interface Harm {
  /** Per cent of all packets. */
  readonly lost?: number;
  /** Per cent of the packets of 1000 to 1500 bytes whose payload is written over; nobody looks at UDP's own checksum here. */
  readonly corrupted?: number;
  /** A path that dies after some messages; more are then sent until the sender has noticed. */
  readonly deadPath?: number;
  /** Packets are lost only on this rail. */
  readonly lossyRail?: string;
  /** A rail that dies after some messages, and comes back once the sender has noticed. */
  readonly deadRail?: string;
  readonly settings?: Partial<Settings>;
}

const {
  lost = 0,
  corrupted = 0,
  deadPath,
  lossyRail,
  deadRail,
  settings = {},
} = JSON.parse(process.argv[2] ?? '{}') as Harm;
const MESSAGE_BYTES = 1_000_000;
const MESSAGES = 12;
const MAX_MESSAGES = 500;

/** Needs a network namespace that is this process's alone. */
function addRule(rule: string): void {
  execFileSync('nft', [`add rule ip weftline in ${rule}`]);
}

/** UDP ports of this process alone; both ends of each path are in it. */
function udpPorts(): number[] {
  return readFileSync('/proc/self/net/udp', 'utf8')
    .split('\n')
    .slice(1, -1)
    .map((line) => parseInt((line.trim().split(/\s+/)[1] as string).split(':')[1] as string, 16));
}

execFileSync('ip', ['link', 'set', 'lo', 'up', 'gso_max_segs', '1']);
execFileSync('nft', ['add table ip weftline; add chain ip weftline in { type filter hook input priority 0; }']);
await using near = await Transport.create({ name: 'near', settings });
await using far = await Transport.create({ name: 'far', settings });
using listener = await far.listen({ host: '127.0.0.1', port: 0 });
const [there, here] = await Promise.all([
  listener.accept({ timeoutMs: 120_000 }),
  near.connect({ host: '127.0.0.1', port: listener.port }),
]);
const onRail = lossyRail === undefined ? '' : `ip daddr ${lossyRail} `;
if (lost !== 0) addRule(`${onRail}ip protocol udp numgen random mod 100 < ${lost} drop`);
if (corrupted !== 0) {
  addRule(`ip protocol udp udp length 1000-1500 numgen random mod 100 < ${corrupted} @th,1024,32 set 0x12345678`);
}

const source = await near.register(new Uint8Array(new SharedArrayBuffer(MESSAGE_BYTES)));
const target = await far.register(new Uint8Array(new SharedArrayBuffer(2 * MESSAGE_BYTES)));
const remote = await far.register(new Uint8Array(new SharedArrayBuffer(MESSAGE_BYTES)), { write: true });
for (let index = 0; index < MESSAGE_BYTES; index += 1) source.bytes[index] = (index * 31 + (index >> 9)) & 0xff;
/** A message that differs from the one before in length and place, and must arrive intact. */
async function sendOne(message: number): Promise<void> {
  const bytes = MESSAGE_BYTES - (message % MESSAGES);
  const offset = (message % 2) * MESSAGE_BYTES;
  target.bytes.fill(0);
  const receive = there.receive({ region: target, offset, bytes: MESSAGE_BYTES });
  const send = here.send({ region: source, bytes });
  assert.equal(await far.wait(receive), bytes);
  await near.wait(send);
  const got = target.bytes.subarray(offset, offset + bytes);
  assert.ok(Buffer.compare(got, source.bytes.subarray(0, bytes)) === 0, `message ${message}`);
  const [other] = target.bytes.subarray(MESSAGE_BYTES - offset);
  assert.equal(other, 0);
}

for (let message = 0; message < MESSAGES; message += 1) await sendOne(message);
if (deadPath !== undefined) {
  const port = udpPorts()[deadPath];
  addRule(`udp dport ${port} drop`);
  addRule(`udp sport ${port} drop`);
  for (let message = 0; message < MAX_MESSAGES; message += 1) {
    await sendOne(message);
    const { paths } = (await here.statistics()).connection;
    // Others may seem dead as well for a moment, on a busy machine.
    if (paths.filter(({ alive }) => !alive).length === 1) break;
  }
}
if (deadRail !== undefined) {
  const isDead = async (): Promise<boolean> => (await here.statistics()).connection.paths.some(({ alive }) => !alive);
  addRule(`ip protocol udp ip daddr ${deadRail} drop`);
  for (let message = 0; message < MAX_MESSAGES && !(await isDead()); message += 1) await sendOne(message);
  assert.ok(await isDead(), 'no path is found to be dead');
  execFileSync('nft', ['flush chain ip weftline in']);
  for (let message = 0; message < MAX_MESSAGES && (await isDead()); message += 1) await sendOne(message);
  assert.ok(!(await isDead()), 'a path stays dead');
}
await near.wait(here.write({ region: source, ...remote.remote }));
assert.ok(Buffer.compare(remote.bytes, source.bytes) === 0);
const { connection, lanes } = await here.statistics();
const { drops } = await there.statistics();
process.stdout.write(JSON.stringify({ connection, drops, lanes }));
