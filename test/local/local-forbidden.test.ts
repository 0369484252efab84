// Where the system forbids copies between processes, or to open files of the peer, agents of one host take another way.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { createBackend } from '#lib/agent/backends/local/local-backend.js';
import { openBackend } from './support/backend-context.ts';
import type { ForbiddenFindings } from './support/forbidden-copies.ts';
import { skipWithout } from './support/requirements.js';

const script = new URL('./support/forbidden-copies.js', import.meta.url).pathname;

test('without process_vm_writev, memory that is not from allocate() goes another way, and explain() says why', () => {
  const { stdout, stderr } = spawnSync(process.execPath, [script], { encoding: 'utf8', timeout: 600_000 });
  assert.notEqual(stdout, '', stderr);
  const { plain, allocated, verdicts, areWritten, forced } = JSON.parse(stdout) as ForbiddenFindings;
  assert.equal(plain, 'multipath');
  assert.equal(allocated, 'local');
  assert.ok(areWritten);
  const [local, multipath] = verdicts;
  const why = /not from agent\.allocate\(\) there, and the system forbids copies between processes/;
  assert.equal(local?.backend, 'local');
  assert.equal(local?.isUsable, false);
  assert.match(local?.why ?? '', why);
  assert.deepEqual([multipath?.backend, multipath?.isUsable, multipath?.why], ['multipath', true, undefined]);
  assert.match(forced, why);
});

/** Root without capabilities may not look into other processes of root. */
const bare = ['--inh-caps=-all', '--bounding-set=-all'];
const canDrop = process.getuid?.() === 0 && spawnSync('setpriv', [...bare, 'true']).status === 0;
const skip = skipWithout(
  'capabilities',
  canDrop ? undefined : 'needs root and setpriv, to take capabilities from a process',
);

test('a peer whose files may not be opened is told from one that can be reached', { skip }, async () => {
  const b = await openBackend(createBackend, 'agent b');
  const text = `
    const { createBackend } = await import('${import.meta.resolve('#lib/agent/backends/local/local-backend.js')}');
    const { openBackend } = await import('${new URL('./support/backend-context.js', import.meta.url).href}');
    const peer = JSON.parse(process.argv[1]);
    const a = await openBackend(createBackend, 'agent a');
    const connectionInfo = new Uint8Array(Buffer.from(peer.connectionInfo, 'base64'));
    console.log(a.backend.whyNotPeer({ ...peer, connectionInfo }) ?? 'nothing');
    await a.backend.close();
  `;
  const peer = JSON.stringify({ ...b.peer, connectionInfo: Buffer.from(b.peer.connectionInfo).toString('base64') });
  const ask = async (command: string, leading: readonly string[]): Promise<string> => {
    const child = spawn(command, [...leading, '--input-type=module', '-e', text, peer], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const parts: Buffer[] = [];
    child.stdout.on('data', (part: Buffer) => parts.push(part));
    await once(child, 'close');
    return Buffer.concat(parts).toString().trim();
  };
  assert.equal(await ask(process.execPath, []), 'nothing');
  assert.match(
    await ask('setpriv', [...bare, process.execPath]),
    new RegExp(`forbids to open files of process ${process.pid}`),
  );
  await b.backend.close();
});
