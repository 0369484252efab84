// Measures the transport over queue pairs against perftest's ib_send_bw, in turn, without loss and with it. Runs in the guest:
// npm run soft-roce -- --pair node scripts/verbs-transport.mjs [--services ud,uc] [--rounds 3] [--seconds 3] [--loss 1,5]
// [--segment 0] [--paths 4]. The last line of its output is JSON.
import { execFileSync, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Transport } from 'weftline/transport';

const MESSAGE = 1 << 20;
const UNDER_WAY = 4;
const PERFTEST_ATTEMPTS = 5;
const PERFTEST_BYTES = 40 * MESSAGE;
const [NEAR, FAR] = ['rxe0', 'rxe1'];
/** Address of the wire's other end, and the index of the IPv4 address in the devices' tables. */
const FAR_ADDRESS = '10.77.0.2';
const GID_INDEX = '1';
const { values } = parseArgs({
  options: {
    services: { type: 'string', default: 'ud,uc' },
    rounds: { type: 'string', default: '3' },
    seconds: { type: 'string', default: '3' },
    loss: { type: 'string', default: '1,5' },
    segment: { type: 'string', default: '0' },
    paths: { type: 'string', default: '4' },
    receiver: { type: 'string' },
    service: { type: 'string' },
  },
});
const rounds = Number(values.rounds);
const seconds = Number(values.seconds);

function settingsOf(service, device) {
  return {
    transportIo: 'verbs',
    rdmaService: service,
    rdmaDevices: `=${device}`,
    transportSegmentBytes: Number(values.segment),
    transportPaths: Number(values.paths),
    // The guest's processor is emulated, which looks like a congested network.
    transportTargetDelayUs: 100_000,
    transportMinRtoUs: 20_000,
  };
}

/** The other process: takes messages until its peer is gone. */
async function receive(port) {
  const transport = await Transport.create({ name: 'the receiver', settings: settingsOf(values.service, FAR) });
  const connection = await transport.connect({ host: '127.0.0.1', port }, { timeoutMs: 120_000 });
  const region = await transport.register(new Uint8Array(new SharedArrayBuffer(UNDER_WAY * MESSAGE)).fill(1));
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

/** Bytes per second of messages that have arrived. */
async function send({ transport, connection, region }) {
  const begin = performance.now();
  const post = (index) => connection.send({ region, offset: index * MESSAGE, bytes: MESSAGE });
  const pending = Array.from({ length: UNDER_WAY }, (_, index) => post(index));
  let messages = 0;
  let end = begin;
  for (let turn = 0, left = UNDER_WAY; left > 0; turn = (turn + 1) % UNDER_WAY) {
    if (pending[turn] === undefined) continue;
    await transport.wait(pending[turn]);
    messages += 1;
    end = performance.now();
    pending[turn] = end - begin < seconds * 1000 ? post(turn) : undefined;
    if (pending[turn] === undefined) left -= 1;
  }
  return (messages * MESSAGE) / ((end - begin) / 1000);
}

/** What perftest reports is 0 where its own measurement of the clock has failed, as it does on a busy machine. */
async function perftest(service, bytes) {
  for (let attempt = 1; attempt <= PERFTEST_ATTEMPTS; attempt += 1) {
    const figure = await perftestOnce(service, bytes);
    if (figure > 0) return figure;
  }
  throw new Error(`ib_send_bw has not measured anything ${PERFTEST_ATTEMPTS} times: is the machine busy?`);
}

/**
 * Bytes per second that perftest reports, with messages as large as those that the transport sends: a message of UC that
 * loses one of its packets never arrives, and perftest then waits for it without end.
 */
async function perftestOnce(service, bytes) {
  const count = String(PERFTEST_BYTES / bytes);
  const words = ['-c', service.toUpperCase(), '-s', String(bytes), '-n', count, '-x', GID_INDEX, '-F'];
  const server = spawn('ib_send_bw', ['-d', FAR, ...words], { stdio: ['ignore', 'ignore', 'ignore'] });
  const ended = once(server, 'exit');
  await new Promise((resolve) => setTimeout(resolve, 1000));
  const text = execFileSync('ib_send_bw', ['-d', NEAR, ...words, FAR_ADDRESS], { encoding: 'utf8', timeout: 60_000 });
  // Its end may wait for messages that were lost.
  server.kill('SIGKILL');
  await ended;
  const line = text.split('\n').find((each) => each.trim().startsWith(`${bytes} `));
  // Bytes, iterations, peak, average in MiB per second.
  return Number(line.trim().split(/\s+/)[3]) * 2 ** 20;
}

function setLoss(percent) {
  for (const end of [0, 1]) {
    const words = percent === 0 ? ['limit', '10000'] : ['limit', '10000', 'loss', `${percent}%`];
    execFileSync('tc', ['qdisc', 'replace', 'dev', `veth${end}`, 'root', 'netem', ...words]);
  }
}

async function withPeer(service, use) {
  const transport = await Transport.create({ name: 'the sender', settings: settingsOf(service, NEAR) });
  const listener = await transport.listen({ host: '127.0.0.1', port: 0 });
  const words = ['--segment', values.segment, '--paths', values.paths, '--service', service];
  const child = fork(fileURLToPath(import.meta.url), ['--receiver', String(listener.port), ...words]);
  const exited = once(child, 'exit');
  const connection = await listener.accept({ timeoutMs: 120_000 });
  const region = await transport.register(new Uint8Array(new SharedArrayBuffer(UNDER_WAY * MESSAGE)).fill(2));
  try {
    return await use({ transport, connection, region });
  } finally {
    await transport.close();
    await exited;
  }
}

const median = (list) => list.toSorted((a, b) => a - b)[list.length >> 1];
const mega = (list) => list.map((bytes) => Math.round(bytes / 1e4) / 100);

function measure(service) {
  const losses = [0, ...values.loss.split(',').filter(Boolean).map(Number)];
  return withPeer(service, async (peer) => {
    const ours = Object.fromEntries(losses.map((percent) => [percent, []]));
    const theirs = [];
    setLoss(0);
    await send(peer);
    for (let round = 0; round < rounds; round += 1) {
      for (const percent of losses) {
        setLoss(percent);
        ours[percent].push(await send(peer));
      }
      setLoss(0);
      theirs.push(await perftest(service, peer.connection.segmentBytes));
    }
    const { connection, failures } = await peer.connection.statistics();
    const lossless = median(ours[0]);
    const report = {
      service,
      segmentBytes: peer.connection.segmentBytes,
      paths: Number(values.paths),
      perftestMegabytesPerSecond: mega(theirs),
      transportMegabytesPerSecond: Object.fromEntries(losses.map((percent) => [`${percent} %`, mega(ours[percent])])),
      ratioToPerftest: Math.round((lossless / median(theirs)) * 100) / 100,
      ratioToLossless: Object.fromEntries(
        losses.slice(1).map((percent) => [`${percent} %`, Math.round((median(ours[percent]) / lossless) * 100) / 100]),
      ),
      retransmittedSegments: connection.retransmittedSegments,
      sentSegments: connection.sentSegments,
      duplicateSegments: connection.duplicateSegments,
      failures,
    };
    console.log(report);
    return report;
  });
}

if (values.receiver !== undefined) {
  await receive(Number(values.receiver));
} else {
  const report = {
    schema: 'weftline.verbs-transport/1',
    date: new Date().toISOString(),
    rounds,
    seconds,
    services: [],
  };
  for (const service of values.services.split(',')) report.services.push(await measure(service));
  console.log(JSON.stringify(report));
}
