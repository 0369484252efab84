// The backend ucx by itself: order, refusals, death of a peer, many posts, and quiet when idle. Skipped without libucp.
import assert from 'node:assert/strict';
import { type ChildProcess, execFile, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { promisify } from 'node:util';
import type { WeftlineError } from 'weftline';
import type { BackendLink, BackendPeer } from '#lib/agent/backend.js';
import { fixedBytes, UcxSide, until, whyNoUcx } from './support/ucx-side.js';
import { busyThreads } from '../support/busy-threads.ts';
import { planned } from './support/planned-transfer.ts';

const waiterModule = new URL('./support/ucx-waiter.js', import.meta.url).pathname;
const peerModule = new URL('./support/ucx-peer.js', import.meta.url).pathname;

const skip = whyNoUcx();

function isError(code: WeftlineError['code'], words: RegExp): (error: unknown) => boolean {
  return (error) => {
    assert.equal((error as WeftlineError).code, code, String(error));
    assert.match((error as WeftlineError).message, words);
    return true;
  };
}

interface Spawned {
  readonly process: ChildProcess;
  readonly peer: BackendPeer;
  readonly region: Uint8Array;
}

async function spawnPeer(incarnation?: string): Promise<Spawned> {
  const child = spawn(process.execPath, [peerModule, ...(incarnation === undefined ? [] : [incarnation])], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [line] = (await once(child.stdout, 'data')) as [Buffer];
  const said = JSON.parse(line.toString()) as BackendPeer & { connectionInfo: string; region: string };
  const peer = { ...said, connectionInfo: Buffer.from(said.connectionInfo, 'hex') };
  return { process: child, peer, region: Buffer.from(said.region, 'hex') };
}

async function kill({ process: child }: Spawned): Promise<void> {
  const gone = once(child, 'exit');
  child.kill('SIGKILL');
  await gone;
}

/** Runs a case with shared memory, which tells nobody when a process dies, and with TCP, where UCX tells. */
const transports = { 'shared memory': undefined, tcp: 'tcp,self' } as const;

for (const [name, value] of Object.entries(transports)) {
  function withTransport(title: string, body: () => Promise<void>): void {
    void test(`ucx over ${name}: ${title}`, { skip }, async () => {
      const before = process.env['UCX_TLS'];
      if (value !== undefined) process.env['UCX_TLS'] = value;
      try {
        await body();
      } finally {
        if (before === undefined) delete process.env['UCX_TLS'];
        else process.env['UCX_TLS'] = before;
      }
    });
  }

  for (const ownThread of [true, false]) {
    withTransport(`puts, then signals, in order, ${ownThread ? 'on threads' : "on the caller's thread"}`, async () => {
      await using near = await UcxSide.open('near', { ownThread });
      await using far = await UcxSide.open('far', { ownThread });
      const sides = [near, far];
      const link = await near.backend.connect(far.peer, { timeoutMs: 10_000 });
      const own = fixedBytes(2 ** 20);
      const theirs = fixedBytes(2 ** 20);
      own.fill(7);
      const local = await near.register(own);
      const remote = link.importRegion((await far.register(theirs)).info, { kind: 'host', bytes: theirs.length });
      const channel = link.openChannel();
      // A rendezvous, whose bytes are fetched later, must not be overtaken by its signal.
      const cell = new BigUint64Array(theirs.buffer, 0, 1);
      let seen = 0n;
      for (let round = 1; round <= 20; round++) {
        const bytes = round % 2 === 0 ? 100 : 900_000;
        assert.ok(channel.put({ local, localOffset: 0, remote, remoteOffset: 64, bytes }));
        assert.ok(channel.signal(remote, 0, 1));
        await until(sides, () => Atomics.load(cell, 0) > seen);
        seen = Atomics.load(cell, 0);
        assert.equal(theirs[64 + bytes - 1], 7);
        theirs.fill(0, 64);
      }
      await until(sides, () => channel.delivered === 40);
      assert.equal(channel.posted, 40);
      assert.equal(seen, 20n);
      await channel.close();
    });
  }

  withTransport('what is refused is named, and nothing of it is written or announced', async () => {
    await using near = await UcxSide.open('near');
    await using far = await UcxSide.open('far');
    const sides = [near, far];
    const link = await near.backend.connect(far.peer, { timeoutMs: 10_000 });
    const theirs = fixedBytes(1000);
    const local = await near.register(fixedBytes(100_000).fill(1));
    const region = await far.register(theirs);
    const about = { kind: 'host', bytes: 1000 } as const;
    const wrongKey = link.importRegion(
      Uint8Array.from(region.info, (byte, at) => (at === 5 ? byte ^ 1 : byte)),
      about,
    );
    const right = link.importRegion(region.info, about);
    const attempt = async (operation: 'read' | 'write', remote: typeof right, bytes: number): Promise<unknown> => {
      const part = { local, localOffset: 0, remote, remoteOffset: 0, bytes };
      const transfer = await link.prepare(operation, planned([part]));
      transfer.post(Buffer.from('never'));
      await until(sides, () => transfer.state !== 'pending');
      const { error } = transfer;
      await transfer.release();
      return error;
    };
    for (const operation of ['read', 'write'] as const) {
      isError('WL_UNAUTHORIZED', /^far has no such region/)(await attempt(operation, wrongKey, 10));
      isError('WL_INVALID_ARGUMENT', /outside the region of far/)(await attempt(operation, right, 1001));
      isError('WL_INVALID_ARGUMENT', /outside/)(await attempt(operation, right, 100_000));
    }
    await region.release();
    isError('WL_UNAUTHORIZED', /deregistered/)(await attempt('write', right, 10));
    assert.deepEqual(theirs, fixedBytes(1000));
    link.notify(Buffer.from('last'));
    await until(sides, () => far.messages.length > 0);
    assert.deepEqual(far.messages, ['near: last']);
    assert.throws(() => link.importRegion(new Uint8Array(3), about), isError('WL_PROTOCOL', /3 bytes/));
  });

  withTransport('a killed peer is an error that names it, and its successor can be reached', async () => {
    await using near = await UcxSide.open('near');
    const local = await near.register(fixedBytes(64 * 2 ** 20));
    const first = await spawnPeer();
    const open = async ({ peer, region }: Spawned): Promise<{ link: BackendLink; post: () => Promise<unknown> }> => {
      const link = await near.backend.connect(peer, { timeoutMs: 10_000 });
      const remote = link.importRegion(region, { kind: 'host', bytes: 64 * 2 ** 20 });
      const part = { local, localOffset: 0, remote, remoteOffset: 0, bytes: 64 * 2 ** 20 };
      const transfer = await link.prepare('write', planned([part]));
      const post = async (): Promise<unknown> => {
        transfer.post();
        await until([near], () => transfer.state !== 'pending');
        return transfer.error;
      };
      return { link, post };
    };
    const { link, post } = await open(first);
    assert.equal(await post(), undefined);
    const posted = post();
    await kill(first);
    // The transfer may have been done just before.
    const error = (await posted) ?? (await post().catch((reason: unknown) => reason));
    isError('WL_PEER_LOST', /^peer is gone/)(error);
    assert.equal(link.error?.code, 'WL_PEER_LOST');
    await link.close();
    await assert.rejects(near.backend.connect(first.peer, { timeoutMs: 5000 }), isError('WL_PEER_LOST', /peer/));
    const second = await spawnPeer('fedcba9876543210');
    const stale = { ...second.peer, incarnation: first.peer.incarnation };
    await assert.rejects(near.backend.connect(stale, { timeoutMs: 5000 }), isError('WL_STALE', /after a restart/));
    assert.equal(await (await open(second)).post(), undefined);
    await kill(second);
  });
}

for (const tls of ['posix,self', 'tcp,self']) {
  test(
    `ucx with UCX_TLS=${tls}: a peer that dies ends a blocking wait long before its deadline`,
    { skip },
    async () => {
      const { stdout, stderr } = await promisify(execFile)(process.execPath, [waiterModule, peerModule], {
        env: { ...process.env, UCX_TLS: tls },
        timeout: 30_000,
      });
      // All of it: a library leaves stdout to the program.
      const { code, message, milliseconds } = JSON.parse(stdout) as Record<string, unknown>;
      assert.doesNotMatch(stderr, /UCX/);
      assert.equal(code, 'WL_PEER_LOST', String(message));
      assert.match(String(message), /peer is gone/);
      assert.ok((milliseconds as number) < 5000, `after ${String(milliseconds)} ms`);
    },
  );
}

test('ucx: another token is refused', { skip }, async () => {
  await using near = await UcxSide.open('near', { token: 'another' });
  await using far = await UcxSide.open('far');
  await assert.rejects(near.backend.connect(far.peer, { timeoutMs: 5000 }), isError('WL_UNAUTHORIZED', /token/));
});

test('ucx: 10,000 posts of 128 blocks, 64 under way, do not grow the process', { skip }, async () => {
  await using near = await UcxSide.open('near');
  await using far = await UcxSide.open('far');
  const sides = [near, far];
  const link = await near.backend.connect(far.peer, { timeoutMs: 10_000 });
  const bytes = 2 ** 20;
  const local = await near.register(fixedBytes(bytes));
  const remote = link.importRegion((await far.register(fixedBytes(bytes))).info, { kind: 'host', bytes });
  const parts = Array.from({ length: 128 }, (_, at) => {
    return { local, localOffset: at * 8192, remote, remoteOffset: at * 8192, bytes: 64 };
  });
  const transfers = await Promise.all(Array.from({ length: 64 }, () => link.prepare('write', planned(parts))));
  const postAll = async (): Promise<void> => {
    for (const transfer of transfers) transfer.post();
    await until(sides, () => transfers.every(({ state }) => state !== 'pending'));
    assert.ok(transfers.every(({ state }) => state === 'done'));
  };
  for (let round = 0; round < 20; round++) await postAll();
  const before = process.memoryUsage().rss;
  for (let round = 20; round < 157; round++) await postAll();
  const grown = process.memoryUsage().rss - before;
  assert.ok(grown < 64 * 2 ** 20, `grew by ${grown} bytes`);
  for (const transfer of transfers) await transfer.release();
});

test('ucx: loaded on any thread, it leaves the signals of the process to Node', { skip }, () => {
  const script = new URL('./support/ucx-signals.js', import.meta.url).pathname;
  const { stdout, stderr } = spawnSync(process.execPath, [script], { encoding: 'utf8' });
  assert.match(stdout, /^node/, stderr);
});

test('ucx: an idle backend sleeps', { skip }, async () => {
  await using near = await UcxSide.open('near');
  await using far = await UcxSide.open('far');
  await near.backend.connect(far.peer, { timeoutMs: 10_000 });
  assert.deepEqual(busyThreads(), []);
});

test('ucx: sides without a transport in common are told so', { skip }, async (context) => {
  const before = process.env['UCX_TLS'];
  context.after(() => {
    if (before === undefined) delete process.env['UCX_TLS'];
    else process.env['UCX_TLS'] = before;
  });
  process.env['UCX_TLS'] = 'posix,self';
  await using near = await UcxSide.open('near');
  process.env['UCX_TLS'] = 'tcp,self';
  await using far = await UcxSide.open('far');
  const refusal = isError('WL_UNSUPPORTED', /UCX cannot reach near by the transports tcp,self/);
  await assert.rejects(near.backend.connect(far.peer, { timeoutMs: 5000 }), refusal);
  await assert.rejects(far.backend.connect(near.peer, { timeoutMs: 5000 }), isError('WL_UNSUPPORTED', /posix,self/));
});

/** How many sockets and memory files of UCX a program gets that this process starts. */
function inherited(): number {
  const { stdout } = spawnSync('ls', ['-l', '/proc/self/fd'], { encoding: 'utf8' });
  return stdout.match(/socket:|ucx_shm/g)?.length ?? 0;
}

test('ucx: programs that this process starts inherit neither its sockets nor its memory', { skip }, async () => {
  const before = inherited();
  await using near = await UcxSide.open('near');
  assert.equal(inherited(), before, near.name);
});
