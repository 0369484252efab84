// Runs every query of the dashboard against a real Prometheus that scrapes running jobs, and says which returned data.
// node scripts/dashboard-check.mjs [PORT], with Debian's package "prometheus"; ports from PORT on, 19500 by default.
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const main = `${root}dist/programs/cli/main.js`;
const SCRAPES_MS = 30_000;

if (process.argv[2] === 'rank') await beRank(process.argv[3]);
else process.exitCode = await check(Number(process.argv[2] ?? 19_500));

/** Calls of all kinds until the file `stop` is there. */
async function beRank(kind) {
  const { CpuDevice } = await import('weftline');
  const { EPAll2AllLayer, EpBuffer, EpLowLatency } = await import('weftline/ep');
  const { Communicator } = await import('weftline/collectives');
  const { ExpertLoads } = await import('weftline/ep/placement');
  const world = await (await import('weftline/world')).join();
  const device = await CpuDevice.create();
  const [tokens, hidden, topk, experts] = [64, 256, 4, 16];
  const config = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk };
  const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden));
  const choices = Int32Array.from({ length: tokens * topk }, (_, cell) => ((cell / topk + (cell % topk)) | 0) % 9);
  const topkIdx = await device.tensor('i32', [tokens, topk], choices);
  const weights = await device.tensor('f32', [tokens, topk], new Float32Array(tokens * topk).fill(1));
  const buffer = await EpBuffer.create(world, device, config);
  const layer = await EPAll2AllLayer.create(world, device, {
    maxTokensPerRank: tokens,
    hidden,
    maxTopk: topk,
    numExperts: experts,
  });
  const communicator = await Communicator.create(world, device);
  const loads = new ExpertLoads({ layers: 1, experts, window: 4, isMetric: true });
  const ll = { ...config, maxTokensPerExpert: 32, overflow: 'drop' };
  const lowLatency = kind === 'one' ? await EpLowLatency.create(world, device, ll) : undefined;
  const transfer = await prepareWrite(world);
  for (const end = Date.now() + SCRAPES_MS + 20_000; ;) {
    const { recvX, handle } = await buffer.dispatch({ x, topkIdx });
    await buffer.combine({ x: recvX, handle });
    handle.dispose();
    const { recvX: output, handle: rows } = await layer.dispatch({ x, topkIdx });
    await layer.combine({ x: output, handle: rows });
    rows.dispose();
    loads.addChoices(0, choices);
    transfer?.post();
    await transfer?.wait();
    if (lowLatency) {
      const result = await lowLatency.dispatch({ x, topkIdx, topkWeights: weights, dtype: 'bf16' });
      await lowLatency.combine({ x: result.recvX, handle: result.handle });
    }
    await buffer.combine({ x: recvX, handle }).catch(() => undefined);
    // An error: the handle was disposed. Rank 1 is late.
    if (world.rank === 1) await sleep(20);
    const isOver = await device.tensor('i32', [1], Int32Array.of(Date.now() > end ? 1 : 0));
    await communicator.allReduce({ input: isOver, output: isOver });
    if (isOver.view()[0] > 0) break;
  }
  await world.close();
}

/** Prepares a write of rank 1 into memory of rank 0. */
async function prepareWrite(world) {
  const { Agent, DescriptorList, loadPublished, publishMetadata, worldMetadataStore } = await import('weftline/agent');
  const agent = await Agent.create(`rank ${world.rank}`, { token: world.secret });
  const store = worldMetadataStore(world.store);
  const blocks = { blockBytes: 4096, count: 64 };
  const pages = await agent.allocate(64 * 4096, { name: 'pages' });
  if (world.rank === 0) await publishMetadata(agent, store);
  if (world.rank !== 1) return undefined;
  const peer = await loadPublished(agent, store, 'rank 0');
  const [remote] = agent.remoteMemory(peer);
  const [local, there] = [DescriptorList.blocks(pages, blocks), DescriptorList.blocks(remote, blocks)];
  return agent.prepare({ operation: 'write', peer, local, remote: there });
}

async function check(port) {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-dashboard-'));
  const children = [];
  const start = (command, words, env = {}) => {
    const child = spawn(command, words, {
      cwd: root,
      stdio: ['ignore', 'ignore', 'inherit'],
      env: { ...process.env, ...env },
    });
    children.push(child);
    return child;
  };
  try {
    const targets = Array.from({ length: 4 }, (_, at) => `'127.0.0.1:${port + at}'`);
    const config = join(folder, 'prometheus.yml');
    writeFileSync(
      config,
      `global: { scrape_interval: 2s }\nscrape_configs:\n  - job_name: weftline\n    static_configs: [{ targets: [${targets.join(', ')}] }]\n`,
    );
    spawnSync('promtool', ['check', 'config', config], { stdio: 'inherit' });
    for (const [at, kind] of ['one', 'two'].entries()) {
      const words = [
        main,
        'run',
        '-n',
        '2',
        ...(kind === 'two' ? ['--hosts', '2'] : []),
        fileURLToPath(import.meta.url),
      ];
      const env = { WEFTLINE_METRICS: `127.0.0.1:${port + 2 * at}`, WEFTLINE_DEVICE: 'cpu' };
      start(process.execPath, [...words, 'rank', kind], env);
    }
    const own = `127.0.0.1:${port + 9}`;
    start('prometheus', [
      `--config.file=${config}`,
      `--storage.tsdb.path=${join(folder, 'data')}`,
      `--web.listen-address=${own}`,
      '--log.level=error',
    ]);
    await sleep(SCRAPES_MS);
    return await ask(`http://${own}`);
  } finally {
    for (const child of children) child.kill();
    await sleep(2000);
    rmSync(folder, { recursive: true, force: true });
  }
}

/** As Grafana fills in its variables. Returns 1 if a query is refused. */
async function ask(url) {
  const { panels } = JSON.parse(readFileSync(`${root}docs/dashboards/weftline.json`, 'utf8'));
  let refused = 0;
  for (const { title, targets = [] } of panels) {
    for (const { expr } of targets) {
      const query = expr.replaceAll('$__rate_interval', '20s').replaceAll('$job_id', '.*');
      const answer = await fetch(`${url}/api/v1/query?${new URLSearchParams({ query })}`);
      const { status, error, data } = await answer.json();
      const values = (data?.result ?? []).map(({ value }) => Number(value[1]));
      const isRefused = status !== 'success';
      if (isRefused) refused += 1;
      const finite = values.filter(Number.isFinite);
      console.log(
        `${title}: ${isRefused ? `refused: ${error}` : `${values.length} series, ${finite.filter((value) => value !== 0).length} not zero`}`,
      );
    }
  }
  return refused === 0 ? 0 : 1;
}
