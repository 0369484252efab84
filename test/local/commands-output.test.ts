// What every command owes its shell: exit codes, stdout that a program can read, no stack traces, reasons on both sides.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { exitCodes } from '#lib/programs/cli/exit-codes.js';
import type { Examination } from '#lib/programs/doctor/doctor.js';
import type { EpBenchReport } from '#lib/programs/bench/ep/ep-bench.js';
import type { P2pBenchReport } from '#lib/programs/bench/p2p/p2p-bench.js';
import { freePort } from '../support/free-port.ts';
import { sampled } from '../support/extent.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const { success, failure, usage } = exitCodes;
const env = { ...process.env, WEFTLINE_TOKEN: undefined, NODE_TEST_CONTEXT: undefined };
const STACK = /\n {4}at /;
const smallSim = ['sim', 'pair', '--nmsg', '2', '--msize', '10K'];

interface Ended {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function weftline(...args: string[]): Ended {
  return spawnSync(process.execPath, [main, ...args], { encoding: 'utf8', timeout: 600_000, env });
}

/** `shell` runs the command as "$@"; the status is that of the command. */
function inShell(shell: string, ...args: string[]): Ended {
  const words = ['-c', `${shell}\nexit \${PIPESTATUS[0]}`, 'bash', process.execPath, main, ...args];
  return spawnSync('bash', words, { encoding: 'utf8', timeout: 600_000, env });
}

test('a reader that has seen enough ends no command: no stack trace, the exit code of the work', () => {
  const { status, stderr } = inShell('"$@" | true', 'doctor');
  assert.deepEqual([status, stderr], [success.code, '']);
  const sim = inShell('"$@" | head -c 1 > /dev/null', ...smallSim);
  assert.deepEqual([sim.status, sim.stderr], [success.code, '']);
});

test('a full disk is one line and a failure, on stdout and for --json', { skip: !existsSync('/dev/full') }, () => {
  const onStdout = inShell('"$@" > /dev/full', 'doctor');
  assert.equal(onStdout.status, failure.code);
  assert.match(onStdout.stderr, /^weftline: WL_FILE: Cannot write to stdout: ENOSPC[^\n]*\n$/);
  for (const args of [
    ['doctor', '--json', '/dev/full'],
    [...smallSim, '--json', '/dev/full'],
    [...smallSim, '--report', '/dev/full'],
  ]) {
    const { status, stderr } = weftline(...args);
    assert.equal(status, failure.code, args.join(' '));
    assert.match(stderr, /^weftline: WL_FILE: Cannot write \/dev\/full: ENOSPC[^\n]*\n$/);
  }
});

test('--json - puts the document on stdout and nothing else', () => {
  const sim = weftline(...smallSim, '--json', '-');
  assert.equal(sim.status, success.code, sim.stderr);
  assert.equal((JSON.parse(sim.stdout) as { readonly pattern: string }).pattern, 'pair');
  for (const args of [
    ['doctor', '--json', '-'],
    ['doctor', '--json'],
  ]) {
    assert.equal((JSON.parse(weftline(...args).stdout) as Examination).cpuReady, true);
  }
  const ranks = ['--ranks', '2', '--tokens', '8', '--hidden', '64', '--topk', '2', '--experts', '4'];
  const bench = weftline('bench', 'ep', ...ranks, '--iterations', '2', '--json', '-');
  assert.equal(bench.status, success.code, bench.stderr);
  assert.equal((JSON.parse(bench.stdout) as EpBenchReport).schema, 'weftline.bench.ep/1');
  const both = weftline('2proc', '--device', 'cpu', '--size', '1K', '--json', '-');
  const { checksum } = JSON.parse(both.stdout) as { readonly checksum: number };
  assert.equal(checksum, 42 * 1024, both.stderr);
});

test('--quiet prints the result and no lines on the way', () => {
  const doctor = weftline('doctor', '--quiet');
  assert.doesNotMatch(doctor.stdout, / ok /);
  const { stdout, stderr } = weftline('2proc', '--device', 'cpu', '--size', '1000', '--quiet');
  const lines = stdout.trimEnd().split('\n');
  assert.equal(lines.length, 2, stdout + stderr);
  assert.ok(lines.includes('[initiator] Checksum OK at the target: 42000'), stdout);
  assert.ok(
    lines.some((line) => line.endsWith('[target] Checksum OK: 42000')),
    stdout,
  );
});

test('wrong usage is told apart from a failure, and a bench without a role explains itself', () => {
  for (const bench of ['transport', 'p2p']) {
    const { status, stderr } = weftline('bench', bench);
    assert.equal(status, usage.code);
    assert.match(stderr, /--role server\n[^]*--role client\n[^]*WEFTLINE_TOKEN[^]*--peer-ip/);
  }
  for (const args of [['bench', 'transport', '--no-such'], ['bench', 'p2p', '--sizes', '1,many'], ['no-such']]) {
    const { status, stderr } = weftline(...args);
    assert.equal(status, usage.code, args.join(' '));
    assert.match(stderr, /^error: /);
  }
  const { status, stderr } = weftline('bench', 'p2p', '--role', 'client', '--peer-ip', '0.0.0.0');
  assert.equal(status, usage.code);
  assert.match(stderr, /WL_INVALID_ARGUMENT: Invalid --peer-ip: expected the address of one host, got "0\.0\.0\.0"/);
});

test('--version tells the version, the commit of the build, the platform and Node', () => {
  const { status, stdout } = weftline('--version');
  assert.equal(status, 0);
  assert.match(stdout, /^\d+\.\d+\.\d+ \(build (of unknown commit|[0-9a-f]{12}\+?), \w+-\w+, Node \d+\.\d+\.\d+\)\n$/);
  assert.ok(stdout.includes(`${process.platform}-${process.arch}, Node ${process.versions.node}`));
});

test('what messages recommend is there: --aot-folder and --use-aot', () => {
  for (const command of [['moe'], ['bench', 'ep'], ['2proc']]) {
    const { stdout } = weftline(...command, '--help');
    for (const flag of ['--aot-folder', '--use-aot', '--nvrtc'])
      assert.match(stdout, new RegExp(flag), command.join(' '));
  }
  assert.match(weftline('bench', 'transport', '--help').stdout, /--congestion/);
});

/** A server of a bench with a free port, and what it says on stdout and stderr. */
async function serve(bench: string, ...words: string[]): Promise<{ port: string; ended: Promise<Ended> }> {
  // Port 0 is refused on the command line.
  const port = await freePort();
  const child = spawn(process.execPath, [main, 'bench', bench, '--role', 'server', '--port', String(port), ...words], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env,
    timeout: 600_000,
  });
  let stdout = '';
  let stderr = '';
  child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
  const ended = once(child, 'close').then(([status]: number[]) => ({ status: status ?? null, stdout, stderr }));
  await new Promise<void>((resolve) => {
    child.stdout.on('data', (chunk: Buffer) => {
      stdout += chunk.toString();
      if (stdout.includes('listening at')) resolve();
    });
    child.once('close', () => resolve());
  });
  return { port: String(port), ended };
}

async function client(bench: string, port: string, ...words: string[]): Promise<Ended> {
  const args = [main, 'bench', bench, '--role', 'client', '--port', port, ...words];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'], env, timeout: 600_000 });
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (chunk: Buffer) => (stdout += chunk.toString()));
  child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
  const [status] = (await once(child, 'close')) as [number];
  return { status, stdout, stderr };
}

test('a client that refuses its own arguments tells the server, which ends with the reason', async () => {
  const refusals = [
    [
      'transport',
      ['--nflow', '1024', '--nmsg', '64'],
      /Invalid --nflow \* --nmsg \* --nreq: expected at most 1024, got 131072/,
    ],
    ['p2p', ['--sizes', '256', '--compare', '3'], /Invalid --sizes: expected with --compare a size of at least 1 MiB/],
  ] as const;
  for (const [bench, words, reason] of sampled<(typeof refusals)[number]>(refusals, 1)) {
    const server = await serve(bench);
    const own = await client(bench, server.port, ...words);
    const told = await server.ended;
    assert.equal(own.status, usage.code);
    assert.equal(told.status, failure.code);
    for (const { stderr } of [own, told]) {
      assert.match(stderr, reason);
      assert.doesNotMatch(stderr, STACK);
    }
    assert.match(told.stderr, /WL_INVALID_ARGUMENT: the bench client failed: /);
  }
});

test('what fails on one side is told to the other with its reason', async () => {
  const server = await serve('p2p', '--backend', 'local');
  const own = await client('p2p', server.port, '--backend', 'multipath');
  const told = await server.ended;
  for (const { status, stderr } of [own, told]) {
    assert.equal(status, failure.code);
    assert.match(stderr, /WL_UNSUPPORTED: .*multipath/);
    assert.doesNotMatch(stderr, /WL_CLOSED/);
  }
});

test('bench p2p --compare over multipath compares sizes from 1 MiB on, and says which it left out', async () => {
  const server = await serve('p2p', '--backend', 'multipath');
  const words = ['--backend', 'multipath', '--sizes', '64K,1M', '--iterations', '4', '--compare', '1', '--json', '-'];
  const { status, stdout, stderr } = await client('p2p', server.port, ...words);
  assert.equal(status, success.code, stderr);
  const { ceilings = [], notCompared = [], workload } = JSON.parse(stdout) as P2pBenchReport;
  assert.equal(workload.mode, 'send');
  assert.deepEqual(
    ceilings.map(({ bytes, ceiling, own }) => [bytes, ceiling, own.length]),
    [[1 << 20, 'transport', 1]],
  );
  assert.deepEqual(
    notCompared.map(({ bytes }) => bytes),
    [65_536],
  );
  assert.equal((await server.ended).status, success.code);
});
