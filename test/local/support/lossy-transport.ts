// Two transports in a network of their own that drops packets. Arguments: per cent of loss, the path to kill or -1, settings as JSON. Prints JSON.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import type { Settings } from 'weftline';
import { Transport } from 'weftline/transport';

const [percent = '0', deadPath = '-1', settingsText = '{}'] = process.argv.slice(2);
const settings = JSON.parse(settingsText) as Partial<Settings>;
const MESSAGE_BYTES = 1_000_000;
const MESSAGES = 12;

/** Needs a network namespace that is this process's alone. */
function drop(...what: string[]): void {
  execFileSync('nft', ['add', 'rule', 'ip', 'weftline', 'in', ...what, 'counter', 'drop']);
}

/** Of this process alone; both ends of each path are in it. */
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
  listener.accept({ timeoutMs: 10_000 }),
  near.connect({ host: '127.0.0.1', port: listener.port }),
]);
if (percent !== '0')
  drop('ip', 'protocol', 'udp', 'numgen', 'random', 'mod', '1000', '<', String(10 * Number(percent)));

const source = await near.register(new Uint8Array(new SharedArrayBuffer(MESSAGE_BYTES)));
const target = await far.register(new Uint8Array(new SharedArrayBuffer(2 * MESSAGE_BYTES)));
const remote = await far.register(new Uint8Array(new SharedArrayBuffer(MESSAGE_BYTES)), { write: true });
for (let index = 0; index < MESSAGE_BYTES; index += 1) source.bytes[index] = (index * 31 + (index >> 9)) & 0xff;
for (let message = 0; message < MESSAGES; message += 1) {
  if (message === 3 && deadPath !== '-1') {
    const port = String(udpPorts()[Number(deadPath)]);
    drop('udp', 'dport', port);
    drop('udp', 'sport', port);
  }
  const offset = (message % 2) * MESSAGE_BYTES;
  target.bytes.fill(0);
  const receive = there.receive({ region: target, offset, bytes: MESSAGE_BYTES });
  const send = here.send({ region: source, bytes: MESSAGE_BYTES - message });
  assert.equal(await far.wait(receive), MESSAGE_BYTES - message);
  await near.wait(send);
  const got = target.bytes.subarray(offset, offset + MESSAGE_BYTES - message);
  assert.ok(Buffer.compare(got, source.bytes.subarray(0, MESSAGE_BYTES - message)) === 0, `message ${message}`);
  const [other] = target.bytes.subarray(MESSAGE_BYTES - offset);
  assert.equal(other, 0);
}
await near.wait(here.write({ region: source, ...remote.remote }));
assert.ok(Buffer.compare(remote.bytes, source.bytes) === 0);
const { connection } = await here.statistics();
process.stdout.write(JSON.stringify(connection));
