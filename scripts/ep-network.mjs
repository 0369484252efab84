// Measures expert parallelism between two hosts that this machine pretends by namespaces: "weftline bench ep" against its
// carrier alone, and against MPI_Alltoallv of packed rows where mpicc and mpirun are installed. Needs root, unshare and ip.
// Arguments: see `options`. Everything it starts lives in a namespace of processes, which ends with it, however it ends.
import { spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { addresses, INTERFACE, TwoHosts, whyNotTwoHosts } from './ep-network/two-hosts.mjs';

const HOSTS = 2;
const GOAL_CARRIER = 0.85;
const GOAL_MPI = 1.5;

const options = {
  /** Ranks of each host. */
  ranks: { type: 'string', default: '2' },
  tokens: { type: 'string', default: '4096' },
  hidden: { type: 'string', default: '7168' },
  topk: { type: 'string', default: '8' },
  experts: { type: 'string', default: '256' },
  iterations: { type: 'string', default: '8' },
  warmup: { type: 'string', default: '2' },
  pairs: { type: 'string', default: '32' },
  seed: { type: 'string', default: '1' },
  /** How often weftline and MPI take turns. */
  rounds: { type: 'string', default: '2' },
  /** Largest packet of the link between the hosts. */
  mtu: { type: 'string', default: '1500' },
  /** Rate of the link, as tc takes it: 10gbit; what the processors carry by default. */
  rate: { type: 'string' },
  /** EPAll2AllLayer as well. */
  layer: { type: 'boolean', default: false },
  'no-mpi': { type: 'boolean', default: false },
  /** Transports of MPI: within a host, and between. */
  btl: { type: 'string', default: 'vader,tcp,self' },
  /** Seconds that one run may take. */
  timeout: { type: 'string', default: '600' },
  json: { type: 'string' },
  /** Folder of the process that measures, which the one that started it removes. */
  inside: { type: 'string' },
};
const { values } = parseArgs({ options });
const main = fileURLToPath(new URL('../dist/programs/cli/main.js', import.meta.url));
const timeoutMs = Number(values.timeout) * 1000;
const script = fileURLToPath(import.meta.url);

/** In a namespace of processes, of which the kernel ends all when the first one ends. */
function runInside() {
  const why = whyNotTwoHosts();
  if (why !== undefined) {
    console.error(`ep-network: cannot make two hosts: ${why}`);
    process.exitCode = 1;
    return;
  }
  const namespace = ['--pid', '--fork', '--kill-child', '--mount-proc'];
  const folder = mkdtempSync(join(tmpdir(), 'weftline-ep-network-'));
  const words = [...namespace, process.execPath, script, '--inside', folder, ...process.argv.slice(2)];
  // The end of its input tells the inner process that this one is gone.
  const child = spawn('unshare', words, { stdio: ['pipe', 'inherit', 'inherit'] });
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill('SIGKILL'));
  child.on('error', (error) => console.error(`ep-network: cannot start unshare: ${error.message}`));
  child.on('close', (code) => {
    process.exitCode = code ?? 1;
    rmSync(folder, { recursive: true, force: true });
  });
}

const median = (list) => quantile(list, 0.5);
const largest = (list) => Math.max(...list);

function quantile(list, q) {
  const sorted = list.toSorted((a, b) => a - b);
  const at = q * (sorted.length - 1);
  const below = sorted[Math.floor(at)];
  return below + (at - Math.floor(at)) * (sorted[Math.ceil(at)] - below);
}

/** One run of the bench on both hosts; returns its document. */
async function benchWeftline(hosts, folder) {
  const file = join(folder, 'weftline.json');
  const { tokens, hidden, topk, experts, iterations, warmup, pairs, seed } = values;
  const numbers = { tokens, hidden, topk, experts, iterations, warmup, pairs, seed };
  const words = Object.entries({ ...numbers, ranks: HOSTS * Number(values.ranks) }).flatMap(([name, value]) => [
    `--${name}`,
    String(value),
  ]);
  const bench = [main, 'bench', 'ep', '--device', 'cpu', ...words, '--json', file, '--quiet'];
  if (!values.layer) bench.push('--no-layer');
  const env = { WEFTLINE_TOKEN: randomBytes(16).toString('hex') };
  const job = ['run', '-n', values.ranks, '--nnodes', String(HOSTS), '--master', `${addresses[0]}:29500`];
  const nodes = [0, 1].map((node) =>
    hosts.start(node, [process.execPath, main, ...job, '--node-rank', String(node), ...bench], { env, timeoutMs }),
  );
  // One host may only have been stopped because of the other: the messages of both say what went wrong.
  const failures = (await Promise.allSettled(nodes)).flatMap(({ reason }) => reason?.message ?? []);
  if (failures.length > 0) throw new Error(failures.join('\n'));
  const report = JSON.parse(readFileSync(file, 'utf8'));
  rmSync(file);
  return report;
}

/** The compiled peer, or why there is none. */
function buildPeer(folder) {
  if (values['no-mpi']) return { why: '--no-mpi' };
  if (spawnSync('mpirun', ['--version']).status !== 0) return { why: 'mpirun is not installed' };
  const program = join(folder, 'alltoallv');
  const source = fileURLToPath(new URL('ep-network/alltoallv.c', import.meta.url));
  const built = spawnSync('mpicc', ['-O3', '-march=native', '-o', program, source], { encoding: 'utf8' });
  if (built.error !== undefined) return { why: 'mpicc is not installed' };
  if (built.status !== 0) throw new Error(`mpicc could not compile ${source}:\n${built.stderr}`);
  const version = spawnSync('mpirun', ['--version'], { encoding: 'utf8' }).stdout.split('\n')[0];
  return { program, version };
}

/** One run of the peer: mpirun on host 0 starts its daemon on host 1 by nsenter, as it would by ssh. */
async function benchMpi(hosts, folder, program) {
  const agent = join(folder, 'agent.sh');
  writeFileSync(agent, `#!/bin/sh\nshift\nexec ${hosts.enter(1).join(' ')} sh -c "$*"\n`, { mode: 0o755 });
  const mca = {
    btl: values.btl,
    btl_tcp_if_include: INTERFACE,
    oob_tcp_if_include: INTERFACE,
    plm: 'rsh',
    plm_rsh_agent: agent,
    orte_tmpdir_base: folder,
    // Ranks that wait for a message must not keep others from a processor.
    mpi_yield_when_idle: availableParallelism() < HOSTS * Number(values.ranks) ? '1' : '0',
  };
  const { tokens, hidden, topk, experts, warmup, iterations, pairs, seed } = values;
  const slots = addresses.map((address) => `${address}:${values.ranks}`).join(',');
  const started = `-n ${HOSTS * Number(values.ranks)} --host ${slots} --map-by slot --bind-to none --oversubscribe`;
  const parameters = Object.entries(mca).flatMap(([name, value]) => ['--mca', name, value]);
  const mpirun = ['mpirun', '--allow-run-as-root', '--leave-session-attached', ...started.split(' '), ...parameters];
  const words = [...mpirun, program, tokens, hidden, topk, experts, warmup, iterations, pairs, seed];
  const said = await hosts.start(0, words, { timeoutMs });
  return JSON.parse(said.slice(said.indexOf('{')));
}

const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
const ms = (milliseconds) => `${milliseconds.toFixed(1)} ms`;

/** What all rounds of weftline come to. */
function summarizeWeftline(reports) {
  const cases = reports[0].cases.map(({ name, rows, networkBytes, sentBytes }) => {
    const all = reports.map((report) => report.cases.find((one) => one.name === name));
    const phase = all.flatMap(({ networkPhase }) => networkPhase?.ratioToCarrier.median ?? []);
    return {
      name,
      milliseconds: median(all.map(({ microseconds }) => microseconds.median)) / 1000,
      // Each way; routing is even.
      rowsPerLink: rows.network / 2,
      bytesPerLink: networkBytes / 2,
      sentPerLink: sentBytes / 2,
      networkGBps: median(all.map(({ networkGBps }) => networkGBps.median)),
      ...(phase.length === 0
        ? {}
        : { ratio: median(all.map(({ ratioToCarrier }) => ratioToCarrier.median)), ratioInPhase: median(phase) }),
    };
  });
  const pairs = reports[0].pairs.map(({ name }) => {
    const all = reports.map((report) => report.pairs.find((one) => one.name === name));
    return { name, p50: median(all.map(({ p50 }) => p50)) / 1000, p99: largest(all.map(({ p99 }) => p99)) / 1000 };
  });
  return { cases, pairs };
}

function summarizeMpi(runs) {
  const { rows, rowBytes } = runs[0];
  return {
    dispatch: median(runs.map(({ dispatch }) => median(dispatch))),
    combine: median(runs.map(({ combine }) => median(combine))),
    pairs: {
      p50: median(runs.map(({ pairs }) => pairs.p50)),
      p99: largest(runs.map(({ pairs }) => pairs.p99)),
    },
    rowsPerLink: rows / 2,
    bytesPerLink: (rows / 2) * rowBytes,
  };
}

function printWeftline({ cases, pairs }) {
  for (const { name, milliseconds, rowsPerLink, sentPerLink, bytesPerLink, networkGBps, ...ratios } of cases) {
    const beside = `${rowsPerLink.toFixed(0)} rows each way, ${mib(bytesPerLink)}, sent ${mib(sentPerLink)}`;
    const of =
      ratios.ratio === undefined
        ? ''
        : `; of the carrier ${ratios.ratio.toFixed(2)}, in the network's phase ${ratios.ratioInPhase.toFixed(2)} (goal ${GOAL_CARRIER})`;
    console.log(`${name}: ${ms(milliseconds)}, ${networkGBps.toFixed(2)} GB/s; ${beside}${of}`);
  }
  for (const { name, p50, p99 } of pairs)
    console.log(`${name}, dispatch and combine in turn: ${ms(p50)}, p99 ${ms(p99)}`);
}

function printMpi({ version, dispatch, combine, pairs, rowsPerLink, bytesPerLink, times }) {
  const sent = `${rowsPerLink.toFixed(0)} rows each way, ${mib(bytesPerLink)}`;
  console.log(`${version}, alltoallv: dispatch ${ms(dispatch)}, combine ${ms(combine)}; ${sent}`);
  console.log(`${version}, dispatch and combine in turn: ${ms(pairs.p50)}, p99 ${ms(pairs.p99)}`);
  const each = Object.entries(times).map(([name, factor]) => `${name} ${factor.toFixed(2)}`);
  console.log(`weftline is so many times as fast: ${each.join(', ')} (goal ${GOAL_MPI})`);
}

async function measure(folder) {
  const hosts = await TwoHosts.open({ mtu: values.mtu, rate: values.rate });
  try {
    const peer = buildPeer(folder);
    if (peer.why !== undefined) console.log(`no comparison with MPI: ${peer.why}`);
    const [reports, runs] = [[], []];
    for (let round = 0; round < Number(values.rounds); round += 1) {
      reports.push(await benchWeftline(hosts, folder));
      if (peer.program !== undefined) runs.push(await benchMpi(hosts, folder, peer.program));
    }
    const weftline = summarizeWeftline(reports);
    const { ranks, tokens, hidden, topk, experts, mtu, rate = 'none' } = values;
    console.log(
      `${HOSTS} hosts of ${ranks} ranks, ${tokens} tokens of ${hidden}, top ${topk} of ${experts}; MTU ${mtu}, rate ${rate}, ${availableParallelism()} cores`,
    );
    printWeftline(weftline);
    const report = { schema: 'weftline.ep-network/1', date: new Date().toISOString(), options: values, weftline };
    if (runs.length > 0) {
      const mpi = summarizeMpi(runs);
      const of = (name) => weftline.cases.find((one) => one.name === name).milliseconds;
      const times = {
        dispatch: mpi.dispatch / of('dispatch'),
        combine: mpi.combine / of('combine'),
        pairs: mpi.pairs.p50 / weftline.pairs[0].p50,
      };
      report.mpi = { version: peer.version, ...mpi, times, runs };
      printMpi(report.mpi);
    }
    report.reports = reports;
    if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(report, undefined, 2)}\n`);
  } finally {
    hosts.close();
  }
}

if (values.inside === undefined) runInside();
else {
  process.stdin.on('end', () => process.exit(1)).resume();
  if (!existsSync(main)) throw new Error(`${main} is not there: run npm run build first`);
  try {
    await measure(values.inside);
  } catch (error) {
    console.error(`ep-network: ${error.message}`);
    process.exitCode = 1;
  }
  process.stdin.destroy();
}
