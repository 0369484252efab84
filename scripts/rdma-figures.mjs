// Measures an agent's backend beside the usual tool on the same RDMA devices, in turn: verbs beside perftest, ucx beside
// ucx_perftest. Run in the guest, by
// npm run soft-roce -- --pair node scripts/rdma-figures.mjs [--backend verbs] [--rounds 5] [--bytes 65536] [--count 400]
//   [--pings 300] [--warm 6000] [--inflight 16] [--mode write] [--tls rc_v] [--thread caller]
// Backend bare: native calls of one process without an agent, the most that Node can reach; beside perftest.
// Prints a table, and the figures as one line of JSON. The build must be fresh; perftest and ucx-utils are Debian packages.
import { fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const { values } = parseArgs({
  options: {
    backend: { type: 'string', default: 'verbs' },
    mode: { type: 'string', default: 'write' },
    /** UCX_TLS of both sides of ucx. */
    tls: { type: 'string', default: 'rc_v' },
    rounds: { type: 'string', default: '5' },
    bytes: { type: 'string', default: '65536' },
    count: { type: 'string', default: '400' },
    pings: { type: 'string', default: '300' },
    /** Writes before the figures, and two thirds as many pings. */
    warm: { type: 'string', default: '6000' },
    inflight: { type: 'string', default: '16' },
    /** Who drives the agents: a thread of their own, or the caller's, which leaves a processor to the other side. */
    thread: { type: 'string', default: 'own' },
  },
});
const isUcx = values.backend === 'ucx';
const rounds = Number(values.rounds);
const workload = {
  mode: values.mode,
  sizes: [Number(values.bytes)],
  iterations: Number(values.count),
  inflight: Number(values.inflight),
  blocks: undefined,
  compare: 0,
  pings: Number(values.pings),
  descriptors: 0,
};
/** The emulated processor takes long for code that Node has not compiled yet. */
const warm = Number(values.warm);
const warmUp = { ...workload, sizes: [isUcx ? 16_384 : 4096], iterations: warm, pings: Math.round((warm * 2) / 3) };
/** perftest polls on end; so do waits that take less than this, which is long for the emulated processor alone. */
const SPIN_MICROSECONDS = '20000';
/** Bytes of the pings of the bench, see PING_BYTES there. */
const PING_BYTES = 256;
const self = fileURLToPath(import.meta.url);

const bench = new URL('../dist/programs/bench/p2p/p2p-bench.js', import.meta.url);
const common = { localGpuIndex: 0, device: 'cpu', backend: values.backend, ownThread: values.thread === 'own' };
const ignore = () => {};
const tool = isUcx ? 'ucx_perftest' : 'perftest';

if (process.env['RDMA_FIGURES_ROLE'] === undefined) await measure();
else await serveParent(process.env['RDMA_FIGURES_ROLE']);

/** A process of the bench: one side of a session for each word of the parent. */
async function serveParent(role) {
  const { runP2pBench, serveP2pBench } = await import(bench);
  process.send({ ready: true });
  for await (const [message] of messages()) {
    if (role === 'server') {
      const hooks = { onListening: tellPort, onConnected: ignore, onSize: ignore, onOneSided: ignore };
      await serveP2pBench({ ...common, ...hooks, host: '127.0.0.1', port: 0 });
      process.send({ over: true });
    } else {
      const hooks = { onConnected: ignore, onSize: ignore, onBlock: ignore };
      const { sizes, pingMicroseconds } = await runP2pBench({
        ...common,
        ...hooks,
        remoteIp: '127.0.0.1',
        port: message.port,
        workload: message.workload,
      });
      process.send({ megabytes: sizes[0].gigabytesPerSecond * 1000, ping: pingMicroseconds[1] });
    }
  }
}

function tellPort(port) {
  process.send({ port });
}

async function* messages() {
  for (;;) yield once(process, 'message');
}

async function measure() {
  if (values.backend === 'bare') return measureBare();
  const [server, client] = [startSide('server', 'rxe1'), startSide('client', 'rxe0')];
  await Promise.all([server, client].map(hear));
  const own = { megabytes: [], ping: [] };
  const perftest = { megabytes: [], ping: [] };
  await runOwn(server, client, warmUp);
  for (let round = 0; round < rounds; round += 1) {
    for (const side of round % 2 === 0 ? [runOwn, runPerftest] : [runPerftest, runOwn]) {
      const figures = await side(server, client, workload);
      const into = side === runOwn ? own : perftest;
      into.megabytes.push(figures.megabytes);
      into.ping.push(figures.ping);
    }
  }
  for (const child of [server, client]) child.kill();
  report({ own, perftest });
}

async function measureBare() {
  const { bare } = await import('./rdma-bare.mjs');
  const own = { megabytes: [], ping: [] };
  const perftest = { megabytes: [], ping: [] };
  for (let round = 0; round < rounds; round += 1) {
    for (const isOwn of round % 2 === 0 ? [true, false] : [false, true]) {
      const { pings, iterations, sizes, inflight } = workload;
      const moves = { bytes: sizes[0], count: iterations, inflight, pings, pingBytes: PING_BYTES };
      const figures = isOwn ? bare(moves) : await runPerftest();
      const into = isOwn ? own : perftest;
      into.megabytes.push(figures.megabytes);
      into.ping.push(figures.ping);
    }
  }
  report({ own, perftest });
}

function startSide(role, device) {
  const env = {
    WEFTLINE_AGENT_SPIN_US: SPIN_MICROSECONDS,
    ...process.env,
    ...(isUcx ? ucxVariables(device) : {}),
    RDMA_FIGURES_ROLE: role,
    WEFTLINE_RDMA_DEVICES: device,
    WEFTLINE_TOKEN: 'figures',
  };
  return fork(self, process.argv.slice(2), { env, serialization: 'advanced' });
}

async function hear(child) {
  const ending = new AbortController();
  const { signal } = ending;
  try {
    const [message] = await Promise.race([
      once(child, 'message', { signal }),
      once(child, 'exit', { signal }).then(() => Promise.reject(new Error('a side of the bench ended'))),
    ]);
    return message;
  } finally {
    ending.abort();
  }
}

async function runOwn(server, client, moves) {
  server.send({ serve: true });
  const { port } = await hear(server);
  client.send({ port, workload: moves });
  const [figures] = await Promise.all([hear(client), hear(server)]);
  return figures;
}

/** Debian's UCX throws datagrams of soft-RoCE away that connect it, unless it is told not to look at their address. */
function ucxVariables(device) {
  return { UCX_TLS: values.tls, UCX_NET_DEVICES: `${device}:1`, UCX_UD_VERBS_ETH_DGID_CHECK: 'n' };
}

/** Bandwidth of puts or gets; the round trip of messages by tag. */
async function runUcxPerftest() {
  const test = values.mode === 'read' ? 'ucp_get' : 'ucp_put_bw';
  const moves = ['-s', values.bytes, '-n', values.count, '-w', '20', '-O', values.inflight, '-t', test];
  const pings = ['-s', String(PING_BYTES), '-n', values.pings, '-w', '20', '-t', 'tag_lat'];
  // The last line: messages, then microseconds a message: median, average of late, average of all.
  const bandwidth = await ucxPerftestPair(moves);
  const latency = await ucxPerftestPair(pings);
  return { megabytes: Number(values.bytes) / bandwidth[3], ping: 2 * latency[1] };
}

async function ucxPerftestPair(words) {
  const start = (device, more) => {
    const env = { ...process.env, ...ucxVariables(device) };
    return spawn('ucx_perftest', ['-p', '13337', ...words, '-f', ...more], { env });
  };
  const server = start('rxe1', []);
  server.stdout.resume();
  const isOver = once(server, 'exit');
  await new Promise((resolve) => setTimeout(resolve, 1000));
  const client = start('rxe0', ['127.0.0.1']);
  let text = '';
  for (const stream of [client.stdout, client.stderr]) stream.on('data', (part) => (text += part));
  await once(client, 'close');
  await isOver;
  const found = (text.trim().split('\n').at(-1) ?? '').trim().split(/\s+/).map(Number);
  if (!(found[3] > 0)) throw new Error(`ucx_perftest said:\n${text}`);
  return found;
}

async function runPerftest() {
  if (isUcx) return runUcxPerftest();
  const bandwidth = await perftestPair('ib_write_bw', ['-s', values.bytes, '-n', values.count, '-t', values.inflight]);
  const latency = await perftestPair('ib_write_lat', ['-s', String(PING_BYTES), '-n', values.pings]);
  // Average bandwidth in MiB/s; typical latency in microseconds, one way.
  return { megabytes: numbers(bandwidth)[3] * 1.048_576, ping: 2 * numbers(latency)[4] };
}

async function perftestPair(program, words) {
  const usual = ['-F', '-p', '18515', ...words];
  const server = spawn(program, ['-d', 'rxe1', '-x', '1', ...usual], { stdio: 'ignore' });
  const isOver = once(server, 'exit');
  await new Promise((resolve) => setTimeout(resolve, 1000));
  const client = spawn(program, ['-d', 'rxe0', '-x', '1', ...usual, '127.0.0.1']);
  let text = '';
  for (const stream of [client.stdout, client.stderr]) stream.on('data', (part) => (text += part));
  await once(client, 'close');
  await isOver;
  return text;
}

/** The line of results: numbers alone. */
function numbers(text) {
  const line = text.split('\n').find((each) => /^\s*\d+\s+\d+\s+[\d.]+/.test(each));
  if (line === undefined) throw new Error(`perftest said:\n${text}`);
  return line.trim().split(/\s+/).map(Number);
}

function quartiles(list) {
  const sorted = list.toSorted((a, b) => a - b);
  const at = (part) => sorted[Math.min(sorted.length - 1, Math.round(part * (sorted.length - 1)))];
  return { low: at(0.25), median: at(0.5), high: at(0.75) };
}

function report({ own, perftest }) {
  const ratios = {
    megabytes: quartiles(own.megabytes.map((value, round) => value / perftest.megabytes[round])),
    ping: quartiles(own.ping.map((value, round) => value / perftest.ping[round])),
  };
  const line = (name, unit, key) => {
    const [ours, theirs] = [quartiles(own[key]), quartiles(perftest[key])];
    const { low, median, high } = ratios[key];
    console.log(
      `${name}: ${values.backend} ${ours.median.toFixed(1)} ${unit}, ${tool} ${theirs.median.toFixed(1)} ${unit}, ratio ${median.toFixed(2)} (${low.toFixed(2)} to ${high.toFixed(2)})`,
    );
  };
  line(`${values.mode} of ${values.bytes} bytes, ${values.inflight} under way`, 'MB/s', 'megabytes');
  line(`write of ${PING_BYTES} bytes and notification, round trip`, 'us', 'ping');
  console.log(JSON.stringify({ schema: 'weftline.rdma-figures/1', workload, rounds, own, perftest, ratios }));
}
