// The benches and 2proc between two machines, as the guide has them: a token on both, and the address of the other side.
import assert from 'node:assert/strict';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { addresses, type Ended, type Running, TwoMachines, whyNotTwoMachines } from '../support/two-machines.js';
import { skipWithout } from './support/requirements.js';
import { isWhole, sampled } from '../support/extent.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const options = { skip: skipWithout('namespaces', whyNotTwoMachines()), timeout: 600_000 };
const token = { WEFTLINE_TOKEN: 'two-machines' };
const none = { WEFTLINE_TOKEN: undefined };

async function both(server: Running, client: Running): Promise<{ readonly server: Ended; readonly client: Ended }> {
  const ended = { server: await server.ended, client: await client.ended };
  for (const [who, { code, stdout, stderr }] of Object.entries(ended))
    assert.equal(code, 0, `${who}: ${stdout}${stderr}`);
  return ended;
}

test('bench transport: the server says where it listens, the client calls it there', options, async () => {
  using two = await TwoMachines.create();
  const bench = [main, 'bench', 'transport'];
  const server = two.start('a', [...bench, '--role', 'server'], token);
  await server.said(
    `listening at all addresses of this host, port 19999; other machines reach it at --peer-ip ${addresses.a}`,
  );
  const words = [
    '--role',
    'client',
    '--peer-ip',
    addresses.a,
    '--iterations',
    '20',
    '--msize',
    '64K',
    '--compare',
    '1',
    '--seconds',
    '1',
  ];
  const client = two.start('b', [...bench, ...words], token);
  const ended = await both(server, client);
  assert.match(ended.server.stdout, new RegExp(`at ${addresses.b} connected`));
  assert.match(ended.client.stdout, /goodput: [\d.]+ Gbps \(80 messages of 65536 bytes\)/);
});

test("bench transport takes transport_test's own words", options, async () => {
  using two = await TwoMachines.create();
  const basic = ['--perftype=basic', '--iterations=8'];
  const server = two.start('a', [main, 'bench', 'transport', '--server=true', ...basic], token);
  await server.said('listening');
  const client = two.start('b', [main, 'bench', 'transport', `--serverip=${addresses.a}`, ...basic], token);
  assert.match((await both(server, client)).client.stdout, /8 messages of 65536 bytes arrived intact/);
});

for (const [mode, given] of sampled(
  [
    ['read', ['--host', addresses.a]],
    ['send', []],
    ['write', []],
  ] as const,
  2,
)) {
  test(
    `bench p2p --mode ${mode} between two machines${given.length === 0 ? '' : ' at a given address'}`,
    options,
    async () => {
      using two = await TwoMachines.create();
      // By default the agent finds that both are processes of one kernel.
      const bench = [main, 'bench', 'p2p', '--backend', 'multipath'];
      const server = two.start('a', [...bench, '--role', 'server', ...given], token);
      await server.said('Waiting for connection');
      const words = [
        '--role',
        'client',
        '--remote-ip',
        addresses.a,
        '--mode',
        mode,
        '--sizes',
        '256,64K',
        '--iters',
        '10',
      ];
      const client = two.start('b', [...bench, ...words, '--pings', '5'], token);
      const ended = await both(server, client);
      assert.match(ended.server.stdout, new RegExp(`\\[Server\\] Connected to ${addresses.b} \\(GPU 0\\) conn_id=0`));
      assert.match(ended.client.stdout, /^Path: multipath/m);
      assert.match(ended.client.stdout, /\[Client\] {2}64\.0 KB : +[\d.]+ Gbps/);
    },
  );
}

for (const first of sampled(['initiator', 'target'] as const, 1)) {
  test(`2proc between two machines, the ${first} first`, options, async () => {
    using two = await TwoMachines.create();
    const words = [main, '2proc', '--device', 'cpu', '--backend', 'multipath', '--size', '100001'];
    const start = (role: 'initiator' | 'target'): Running => {
      const [machine, peer] = role === 'initiator' ? (['a', 'b'] as const) : (['b', 'a'] as const);
      return two.start(machine, [...words, '--mode', role, '--peer-ip', addresses[peer]], token);
    };
    const early = start(first);
    await early.said('Meeting at');
    const late = start(first === 'initiator' ? 'target' : 'initiator');
    const ended = await both(early, late);
    const [initiator, target] = first === 'initiator' ? [ended.server, ended.client] : [ended.client, ended.server];
    assert.match(initiator.stdout, new RegExp(`the other side reaches this one at ${addresses.a}`));
    assert.match(initiator.stdout, /Path: queue, then multipath/);
    assert.match(target.stdout, /Checksum OK: 4200042/);
  });
}

test('between machines a token is needed, and the error says how to give one', options, async () => {
  using two = await TwoMachines.create();
  const refused = [
    ['bench', 'transport', '--role', 'server', '--host', addresses.a],
    ['bench', 'transport', '--role', 'client', '--peer-ip', addresses.b],
    ['bench', 'p2p', '--role', 'server', '--host', addresses.a],
    ['bench', 'p2p', '--role', 'client', '--remote-ip', addresses.b],
    ['2proc', '--role', 'initiator', '--peer-ip', addresses.b],
    ['2proc', '--role', 'target', '--peer-ip', addresses.b],
  ];
  for (const words of isWhole ? refused : refused.filter((_, index) => index % 2 === 0)) {
    const { code, stderr } = await two.start('a', [main, ...words], none).ended;
    assert.equal(code, 1, words.join(' '));
    for (const part of [/WL_CONFIG: /, /openssl rand -hex 32/, /WEFTLINE_TOKEN/])
      assert.match(stderr, part, words.join(' '));
    assert.doesNotMatch(stderr, /\n {4}at /);
  }
  // An address of another machine is refused before the two meet.
  const foreign = ['2proc', '--role', 'target', '--peer-ip', addresses.b, '--host', addresses.b];
  const { stderr: why } = await two.start('a', [main, ...foreign], token).ended;
  assert.match(why, /WL_INVALID_ARGUMENT: Invalid host: expected a numeric address of this host/);
  // Without a token a server is for this machine alone, and says so.
  const server = two.start('a', [main, 'bench', 'transport', '--role', 'server', '--timeout', '2000'], none);
  await server.said('listening at 127.0.0.1 port 19999: this machine only; for others set WEFTLINE_TOKEN on both');
  const { code, stderr } = await two.start(
    'b',
    [main, 'bench', 'transport', '--role', 'client', '--peer-ip', addresses.a, '--timeout', '500'],
    token,
  ).ended;
  assert.equal(code, 1);
  assert.match(stderr, new RegExp(`WL_TIMEOUT: No transport answered at ${addresses.a} port 19999`));
  await server.ended;
});
