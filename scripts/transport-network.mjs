// Measures the transport on a network of its own that loses packets: goodput under loss, with a dead path, and idle; needs root, ip and nft.
// Arguments: [--rounds 5] [--seconds 1] [--json FILE]. Starts itself again inside `unshare -n`; that network ends with it.
import { execFileSync, fork, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Transport } from 'weftline/transport';

const MESSAGE = 1 << 20;
const UNDER_WAY = 8;
const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '1' },
    json: { type: 'string' },
    inside: { type: 'boolean', default: false },
    receiver: { type: 'string' },
  },
});
const rounds = Number(values.rounds);
const seconds = Number(values.seconds);

function runInside() {
  const script = fileURLToPath(import.meta.url);
  const words = ['-n', process.execPath, script, '--inside', ...process.argv.slice(2)];
  const { status, error } = spawnSync('unshare', words, { stdio: 'inherit' });
  if (error !== undefined) console.error(`Cannot start unshare: ${error.message}`);
  process.exitCode = status ?? 1;
}

/** The other process: takes messages until its peer is gone. */
async function receive(port) {
  const transport = await Transport.create({ name: 'the receiver' });
  const connection = await transport.connect({ host: '127.0.0.1', port });
  const memory = new Uint8Array(new SharedArrayBuffer(UNDER_WAY * MESSAGE)).fill(1);
  const region = await transport.register(memory);
  const offer = (index) => connection.receive({ region, offset: index * MESSAGE, bytes: MESSAGE });
  const pending = Array.from({ length: UNDER_WAY }, (_, index) => offer(index));
  try {
    for (let turn = 0; ; turn = (turn + 1) % UNDER_WAY) {
      await transport.wait(pending[turn], { timeoutMs: 3_600_000 });
      pending[turn] = offer(turn);
    }
  } catch (error) {
    if (error.code !== 'WL_CLOSED' && error.code !== 'WL_PEER_LOST') throw error;
  } finally {
    await transport.close();
  }
}

async function measureAll() {
  execFileSync('ip', ['link', 'set', 'lo', 'up', 'gso_max_segs', '1']);
  nft('add table ip weftline; add chain ip weftline in { type filter hook input priority 0; }');
  const report = { schema: 'weftline.transport-network/1', date: new Date().toISOString(), rounds, seconds };
  report.loss = [await measureLoss(0), await measureLoss(1472)];
  report.deadPath = await measureDeadPath();
  report.connection = await measureConnection();
  if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(report, undefined, 2)}\n`);
}

function nft(command) {
  execFileSync('nft', [command]);
}

async function withPeer(settings, use) {
  for (const [name, value] of Object.entries(settings)) process.env[name] = String(value);
  const transport = await Transport.create({ name: 'the sender' });
  const listener = await transport.listen({ host: '127.0.0.1', port: 0 });
  const child = fork(fileURLToPath(import.meta.url), ['--receiver', String(listener.port)]);
  const exited = once(child, 'exit');
  const connection = await listener.accept({ timeoutMs: 20_000 });
  const region = await transport.register(new Uint8Array(new SharedArrayBuffer(UNDER_WAY * MESSAGE)).fill(2));
  try {
    return await use({ transport, connection, region });
  } finally {
    await transport.close();
    await exited;
  }
}

/** Sends for a while; returns when each message ended, in milliseconds since the begin. */
async function send({ transport, connection, region }, milliseconds, atHalf = () => {}) {
  const begin = performance.now();
  const post = (index) => connection.send({ region, offset: index * MESSAGE, bytes: MESSAGE });
  const pending = Array.from({ length: UNDER_WAY }, (_, index) => post(index));
  const ends = [];
  let isHalf = false;
  for (let turn = 0, left = UNDER_WAY; left > 0; turn = (turn + 1) % UNDER_WAY) {
    if (pending[turn] === undefined) continue;
    transport.waitBlocking(pending[turn]);
    const now = performance.now() - begin;
    ends.push(now);
    if (!isHalf && now > milliseconds / 2) {
      isHalf = true;
      atHalf();
    }
    pending[turn] = now < milliseconds ? post(turn) : undefined;
    if (pending[turn] === undefined) left -= 1;
  }
  return { ends, begin };
}

const gbpsOf = (messages, milliseconds) => (messages * MESSAGE * 8) / milliseconds / 1e6;
const median = (list) => list.toSorted((a, b) => a - b)[list.length >> 1];

async function measureLoss(segment) {
  return withPeer({ WEFTLINE_TRANSPORT_SEGMENT: segment, WEFTLINE_TRANSPORT_PATHS: 4 }, async (peer) => {
    const goodput = { 0: [], 1: [], 5: [] };
    await send(peer, 1000);
    for (let round = 0; round < rounds; round += 1) {
      for (const percent of [0, 1, 5]) {
        nft('flush chain ip weftline in');
        if (percent > 0) nft(`add rule ip weftline in ip protocol udp numgen random mod 100 < ${percent} counter drop`);
        const { ends } = await send(peer, seconds * 1000);
        goodput[percent].push(gbpsOf(ends.length, ends.at(-1)));
      }
    }
    nft('flush chain ip weftline in');
    const { segmentBytes } = peer.connection;
    const ratio = (percent) => median(goodput[percent].map((gbps, round) => gbps / goodput[0][round]));
    const { sentSegments, retransmittedSegments } = (await peer.connection.statistics()).connection;
    const result = { segmentBytes, goodput, ratio1: ratio(1), ratio5: ratio(5), sentSegments, retransmittedSegments };
    console.log(
      `packets of ${segmentBytes}: ${[0, 1, 5].map((p) => `${p} % loss ${median(goodput[p]).toFixed(2)} Gb/s`).join(', ')}; ` +
        `of the lossless: 1 % ${result.ratio1.toFixed(2)}, 5 % ${result.ratio5.toFixed(2)}`,
    );
    return result;
  });
}

/** Goodput from 100 to 400 ms after one of eight paths died, over that of the 300 ms before. */
async function measureDeadPath() {
  const ratios = [];
  for (let round = 0; round < rounds; round += 1) {
    ratios.push(
      await withPeer({ WEFTLINE_TRANSPORT_SEGMENT: 1472, WEFTLINE_TRANSPORT_PATHS: 8 }, async (peer) => {
        const port = portOfPath();
        await send(peer, 700);
        let diedAt = 0;
        const { ends, begin } = await send(peer, 1200, () => {
          nft(`add rule ip weftline in udp dport ${port} drop; add rule ip weftline in udp sport ${port} drop`);
          diedAt = performance.now();
        });
        const died = diedAt - begin;
        const count = (from, to) => ends.filter((end) => end >= died + from && end < died + to).length;
        nft('flush chain ip weftline in');
        return count(100, 400) / count(-310, -10);
      }),
    );
  }
  console.log(
    `one of 8 paths dead, after 100 ms: ${median(ratios).toFixed(2)} (${ratios.map((r) => r.toFixed(2)).join(', ')})`,
  );
  return { ratios, median: median(ratios) };
}

/** A UDP port of this process that is one end of a path. */
function portOfPath() {
  const [, line] = readFileSync('/proc/self/net/udp', 'utf8').split('\n');
  return parseInt(line.trim().split(/\s+/)[1].split(':')[1], 16);
}

/** Memory of 32 connections with 64 paths, and the processor's time while nothing happens on them. */
async function measureConnection() {
  process.env.WEFTLINE_TRANSPORT_PATHS = '64';
  const near = await Transport.create({ name: 'near' });
  const far = await Transport.create({ name: 'far' });
  const listener = await far.listen({ host: '127.0.0.1', port: 0 });
  const connect = async () => {
    const accepted = listener.accept({ timeoutMs: 20_000 });
    const connection = await near.connect({ host: '127.0.0.1', port: listener.port });
    const region = await near.register(new Uint8Array(1000));
    const pair = [connection, await accepted];
    const arrival = pair[1].receive({ region: await far.register(new Uint8Array(1000)) });
    await near.wait(pair[0].send({ region }));
    await far.wait(arrival);
  };
  for (let index = 0; index < 4; index += 1) await connect();
  const before = process.memoryUsage().rss;
  const count = 32;
  for (let index = 0; index < count; index += 1) await connect();
  // Each connection has two ends in this process.
  const bytesPerEnd = (process.memoryUsage().rss - before) / count / 2;
  await new Promise((resolve) => setTimeout(resolve, 500));
  const cpu = process.cpuUsage();
  await new Promise((resolve) => setTimeout(resolve, 10_000));
  const { user, system } = process.cpuUsage(cpu);
  const idleShare = (user + system) / 10e6;
  console.log(
    `64 paths: ${(bytesPerEnd / 1024).toFixed(0)} KiB per end of a connection; 72 ends idle: ${(100 * idleShare).toFixed(2)} % of a core`,
  );
  await near.close();
  await far.close();
  return { paths: 64, bytesPerEnd, idleShare };
}

if (values.receiver !== undefined) await receive(Number(values.receiver));
else if (values.inside) await measureAll();
else runInside();
