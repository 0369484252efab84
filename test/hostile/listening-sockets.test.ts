// What opens sockets that others can reach: each kind of object by itself, and on loopback only unless an address is given.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { runRanks } from '../local/support/run-ranks.js';
import type { Creation } from './support/socket-owner.js';
import type { ReachableSocket } from './support/sockets.js';

const script = new URL('./support/socket-owner.js', import.meta.url);

interface Found {
  readonly sockets: readonly ReachableSocket[];
  readonly hasUcx: boolean;
}

async function create(creation: Creation): Promise<Found> {
  const { stdout } = await promisify(execFile)(process.execPath, [fileURLToPath(script), creation], {
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, UCX_TLS: undefined, WEFTLINE_TOKEN: undefined },
    timeout: 240_000,
  });
  return JSON.parse(stdout) as Found;
}

/** At most so many ports, all on loopback, and no Unix sockets but weftline's own. */
function check({ sockets, hasUcx }: Found, { tcp = 0, udp = 0 }: Readonly<Record<string, number>>): void {
  const seen = sockets.map(({ kind, address }) => `${kind} ${address}`).join(', ');
  const addresses = (kind: ReachableSocket['kind']): string[] =>
    sockets.filter((socket) => socket.kind === kind).map(({ address }) => address);
  const ports = [...addresses('tcp'), ...addresses('udp')];
  assert.deepEqual(
    ports.filter((address) => address !== '127.0.0.1' && address !== '::1'),
    [],
    seen,
  );
  assert.ok(addresses('tcp').length <= tcp, `expected at most ${tcp} TCP ports: ${seen}`);
  assert.ok(addresses('udp').length <= udp, `expected at most ${udp} UDP ports: ${seen}`);
  const others = addresses('unix').filter((name) => !name.includes('weftline'));
  assert.deepEqual(others, [], seen);
  assert.equal(hasUcx, false, 'UCX is loaded, which nobody asked for');
}

// An agent is met over TCP by its backend multipath, an endpoint and a listener at an address of their own besides.
const allowed: Readonly<Record<string, Readonly<Record<string, number>>>> = {
  agent: { tcp: 1 },
  endpoint: { tcp: 2 },
  transport: {},
  'transport that listens': { tcp: 1 },
  'metadata listener': { tcp: 1 },
  world: {},
  'device host': { tcp: 1 },
  'EP buffer': {},
};

for (const [creation, most] of Object.entries(allowed)) {
  test(`sockets that others can reach: ${creation}`, async () => check(await create(creation as Creation), most));
}

test('sockets that others can reach: ranks of one host', async () => {
  for (const creation of ['world', 'EP buffer'] satisfies Creation[]) {
    const { ranks, exitCode, transcript } = await runRanks(2, script, { args: [creation] });
    assert.equal(exitCode, 0, transcript);
    // Rank 0 holds the store.
    for (const { rank, stdout } of ranks) check(JSON.parse(stdout.join('')) as Found, { tcp: rank === 0 ? 1 : 0 });
  }
});
