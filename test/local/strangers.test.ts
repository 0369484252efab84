import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { hostname, tmpdir } from 'node:os';
import test from 'node:test';
import { type Credentials, credentialsOf } from '#lib/meeting/credentials.js';
import { encodeFrame, FrameReader, strangerLimits } from '#lib/meeting/frames.js';
import { StoreClient } from '#lib/world/store-client.js';
import { resultOf, runRanks } from './support/run-ranks.js';

interface Target {
  readonly port: number;
  readonly token: string;
  /** Process of rank 1. */
  readonly pid: number;
}

/** Sends bytes as soon as the connection stands; returns the frames that came until the store hung up. */
function visit(port: number, bytes: readonly Uint8Array[]): Promise<readonly Readonly<Record<string, unknown>>[]> {
  return new Promise((resolve) => {
    const socket = connect({ host: '127.0.0.1', port });
    const reader = new FrameReader(strangerLimits);
    const headers: Readonly<Record<string, unknown>>[] = [];
    socket.on('connect', () => bytes.forEach((piece) => socket.write(piece)));
    socket.on('data', (chunk) => reader.push(chunk));
    socket.on('error', () => {});
    socket.on('close', () => {
      for (let frame = reader.next(); frame !== undefined; frame = reader.next()) headers.push(frame.header);
      resolve(headers);
    });
  });
}

const codeOf = (header: Readonly<Record<string, unknown>> | undefined) =>
  (header?.['refused'] as { readonly code: string } | undefined)?.code;

async function visitAll({ port, token, pid }: Target): Promise<void> {
  const credentials = credentialsOf(token);
  const as = (facts: { readonly rank?: number; readonly size?: number; readonly credentials?: Credentials }) =>
    StoreClient.connect({ host: '127.0.0.1', port, rank: 1, size: 3, credentials, timeoutMs: 120_000, ...facts });
  await assert.rejects(as({ credentials: credentialsOf('a guess') }), { code: 'WL_UNAUTHORIZED' });
  await assert.rejects(as({ size: 5, rank: 4 }), { code: 'WL_CONFIG_MISMATCH', message: /world of 5 .* world of 3/ });
  await assert.rejects(as({}), {
    code: 'WL_RANK_TAKEN',
    message: new RegExp(`Rank 1 .* process ${pid} on ${hostname()}`),
  });
  const [challenge, refusal] = await visit(port, encodeFrame({ version: 99 }));
  assert.equal(challenge?.['protocol'], 'weftline-store');
  assert.equal(codeOf(refusal), 'WL_PROTOCOL');
  const huge = Buffer.alloc(8);
  huge.writeUInt32LE(0x7fff_ffff, 4);
  assert.equal(codeOf((await visit(port, [huge]))[1]), 'WL_PROTOCOL');
  assert.equal(codeOf((await visit(port, [Buffer.from('GET / HTTP/1.1\r\nHost: rank0\r\n\r\n')]))[1]), 'WL_PROTOCOL');
  for (let round = 0; round < 20; round += 1)
    await visit(port, [Buffer.concat([randomBytes(200), Buffer.alloc(8, 0xff)])]);
}

/** More half-open connections than the store keeps: the oldest are dropped, a member still gets in. */
async function crowd({ port, token }: Target): Promise<void> {
  const sockets = Array.from({ length: 1500 }, () =>
    connect({ host: '127.0.0.1', port })
      .resume()
      .on('error', () => {}),
  );
  await Promise.race(sockets.map((socket) => new Promise((resolve) => socket.once('close', resolve))));
  const credentials = credentialsOf(token);
  const late = StoreClient.connect({ host: '127.0.0.1', port, rank: 0, size: 3, credentials, timeoutMs: 120_000 });
  await assert.rejects(late, { code: 'WL_RANK_TAKEN' });
  for (const socket of sockets) socket.destroy();
}

test('strangers are refused with a reason while the job goes on undisturbed', async () => {
  const folder = mkdtempSync(`${tmpdir()}/weftline-test-`);
  const over = `${folder}/over`;
  let visits: Promise<void> | undefined;
  const script = new URL('./support/world-rank.js', import.meta.url);
  const { exitCode, ranks, transcript } = await runRanks(3, script, {
    args: ['visited', over],
    onLine: ({ rank, text }) => {
      if (rank !== 1 || visits !== undefined) return;
      const target = JSON.parse(text) as Target;
      visits = visitAll(target)
        .then(() => crowd(target))
        .finally(() => writeFileSync(over, ''));
    },
  });
  rmSync(folder, { recursive: true });
  await visits;
  assert.ok(visits !== undefined, transcript);
  assert.equal(exitCode, 0, transcript);
  for (const rank of ranks) assert.ok((resultOf(rank) as { readonly rounds: number }).rounds > 0, transcript);
});
