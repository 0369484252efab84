// Agents and endpoints between two machines: which address they take, and what a wrong one is answered with.
import assert from 'node:assert/strict';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { addresses, TwoMachines, whyNotTwoMachines } from '../support/two-machines.js';
import { skipWithout } from './support/requirements.js';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const script = (path: string): string => fileURLToPath(new URL(path, import.meta.url));
const options = { skip: skipWithout('namespaces', whyNotTwoMachines()), timeout: 600_000 };

function run(node: number, how: string): string[] {
  const job = ['-n', '1', '--nnodes', '2', '--node-rank', String(node), '--master', `${addresses.a}:29500`];
  return [main, 'run', ...job, script('./ranks/agent-default-host.js'), how];
}

for (const how of ['plain', 'staged']) {
  test(`agents and endpoints of a job over two machines need no address: ${how} memory`, options, async () => {
    using two = await TwoMachines.create();
    const token = { WEFTLINE_TOKEN: 'two-machines' };
    const nodes = [two.start('a', run(0, how), token), two.start('b', run(1, how), token)];
    for (const [rank, { ended }] of nodes.entries()) {
      const { code, stdout, stderr } = await ended;
      assert.equal(code, 0, stdout + stderr);
      const address = rank === 0 ? addresses.a : addresses.b;
      assert.match(stdout, new RegExp(`rank ${rank}: read by multipath at ${address}`));
    }
  });
}

test('a loopback address of another machine is refused with what to do', options, async () => {
  using two = await TwoMachines.create();
  const { stdout } = await two.start('a', [script('./support/print-metadata.js')]).ended;
  const { stdout: why } = await two.start('b', [script('./support/explain-metadata.js'), stdout.trim()]).ended;
  assert.match(why, /on another machine but published 127\.0\.0\.1.*an address at which others reach its host/);
  assert.match(why, /or create the peer's agent with the option host/);
});
