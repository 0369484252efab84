import assert from 'node:assert/strict';
import test from 'node:test';
import { Command } from 'commander';
import {
  addBenchRoleOptions,
  benchRole,
  type BenchRole,
  checkPeerAddress,
  listenAddress,
  listeningLine,
  peerAddress,
  type PeerFlags,
} from '#lib/programs/cli/peer-options.js';
import { withCode } from '../../../support/with-code.js';

interface Parsed {
  readonly role: BenchRole;
  readonly peer: string;
  readonly listen: string;
  readonly port: number;
}

function parse(...words: string[]): Parsed {
  const command = addBenchRoleOptions(new Command('x'), 1234)
    .exitOverride()
    .configureOutput({ writeErr: () => {} });
  command.parse(words, { from: 'user' });
  const flags = command.opts<PeerFlags>();
  return { role: benchRole(command, flags), peer: peerAddress(flags), listen: listenAddress(flags), port: flags.port };
}

test('one vocabulary: our names and those of other programs mean the same', () => {
  delete process.env['WEFTLINE_TOKEN'];
  const here = '127.0.0.1';
  for (const name of ['--peer-ip', '--server-ip', '--serverip', '--remote-ip']) {
    assert.equal(parse('--role', 'client', name, '10.0.0.1').peer, '10.0.0.1', name);
  }
  assert.deepEqual(parse('--server'), { role: 'server', peer: here, listen: here, port: 1234 });
  assert.equal(parse('--server=true', '--port', '77').port, 77);
  assert.equal(parse('--serverip=10.0.0.1').role, 'client');
  assert.equal(parse('--server=false', '--serverip=10.0.0.1').role, 'client');
  assert.throws(() => parse(), { code: 'commander.error' });
});

test('a server listens where it was told to, else at all addresses only where a token keeps strangers out', () => {
  delete process.env['WEFTLINE_TOKEN'];
  assert.equal(parse('--server').listen, '127.0.0.1');
  assert.equal(parse('--server', '--host', '10.0.0.9').listen, '10.0.0.9');
  assert.equal(parse('--role', 'server', '--server-ip', '10.0.0.9').listen, '10.0.0.9');
  process.env['WEFTLINE_TOKEN'] = 'secret';
  try {
    assert.equal(parse('--server').listen, '0.0.0.0');
    assert.equal(parse('--server', '--host', '127.0.0.1').listen, '127.0.0.1');
  } finally {
    delete process.env['WEFTLINE_TOKEN'];
  }
  assert.match(listeningLine('0.0.0.0', 5), /^listening at all addresses of this host, port 5/);
  assert.match(listeningLine('127.0.0.1', 5), /this machine only; for others set WEFTLINE_TOKEN/);
  assert.equal(listeningLine('10.0.0.9', 5), 'listening at 10.0.0.9 port 5');
  assert.throws(() => checkPeerAddress('::'), withCode('WL_INVALID_ARGUMENT', '--peer-ip'));
});
