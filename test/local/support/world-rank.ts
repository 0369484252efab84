// What a rank does in the tests of the world: argv names the scenario; the last line printed is its result as JSON.
import { spawn } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, watch as fsWatch, writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { CpuDevice, WeftlineError } from 'weftline';
import { Agent } from 'weftline/agent';
import { EpBuffer } from 'weftline/ep';
import { join, type World } from 'weftline/world';

type Scenario = (world: World) => Promise<unknown>;

const bytes = (text: string) => new TextEncoder().encode(text);
const text = (value: Uint8Array | undefined) => new TextDecoder().decode(value);

function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'latin1');
  } catch {
    return '';
  }
}

/** Runs a wait that must fail, and returns what it said and how long it took. */
async function failure(wait: Promise<unknown>) {
  const start = performance.now();
  try {
    await wait;
  } catch (error) {
    if (!(error instanceof WeftlineError)) throw error;
    const { code, message, details, rank } = error;
    return { code, message, details, rank, ms: performance.now() - start };
  }
  throw new Error('The wait was expected to fail');
}

const scenarios: Readonly<Record<string, Scenario>> = {
  async all(world) {
    const gathered = await world.allGather('values', { rank: world.rank, text: 'ü' });
    await world.store.add('count', world.rank + 1);
    await world.barrier('added');
    const sum = await world.store.add('count', 0);
    if (world.rank === 0) {
      // The others wait for the value by then, and must get it in any case.
      await sleep(50);
      await world.store.setJson('late', { from: 0 });
    }
    const late = await world.store.getJson('late', { from: [0] });
    const { swapped } = await world.store.compareAndSet('leader', undefined, bytes(String(world.rank)));
    await world.barrier('added');
    const leader = text(await world.store.get('leader'));
    await world.barrier('read');
    const deleted = world.rank === Number(leader) ? await world.store.delete('leader') : false;
    for (let round = 0; round < 50; round += 1) await world.barrier('again');
    const { rank, size, localRank, localSize, nodeRank, nodeCount, jobId, localRanks } = world;
    const facts = { rank, size, localRank, localSize, nodeRank, nodeCount, jobId, localRanks };
    return { facts, gathered, sum, late, swapped, leader, deleted };
  },

  /** Ranks 1 and 3 stay away from the barrier. */
  async missing(world) {
    if (world.rank % 2 === 1) {
      await world.store.get('done');
      return null;
    }
    const barrier = await failure(world.barrier('lonely', { timeoutMs: 300 }));
    const key = await failure(world.store.get('never', { timeoutMs: 100, from: [3] }));
    await world.store.add('ready', 1);
    if (world.rank === 0) {
      while ((await world.store.add('ready', 0)) < 2) await sleep(5);
      await world.store.set('done', bytes('1'));
    }
    return { barrier, key };
  },

  /** Rank 2 is killed while the others wait in three ways. */
  async killed(world) {
    await world.barrier('start');
    if (world.rank === 2) {
      process.kill(process.pid, 'SIGKILL');
      await sleep(10_000);
    }
    const waits = [
      world.barrier('b'),
      world.allGather('g', world.rank),
      world.store.get('k', { from: [2] }),
      world.store.get('k'),
    ];
    const failures = await Promise.all(waits.map(failure));
    const later = await failure(world.barrier('later'));
    const reason = world.peerLost.reason as WeftlineError;
    console.log(JSON.stringify({ failures, later, lost: { code: reason.code, rank: reason.details['rank'] } }));
    // Rank 0 holds the store: it stays until the others have their answers.
    await world.close();
    process.exit(3);
  },

  /** Rank 1 closes in order, the others still wait for it. */
  async closed(world) {
    if (world.rank === 1) return null;
    const barrier = await failure(world.barrier('without 1'));
    return { barrier, lost: world.peerLost.aborted };
  },

  /** Rank 1 fails with an error of its own and tells. */
  async failed(world) {
    if (world.rank === 1) throw new WeftlineError('WL_CHECK', 'the sum is wrong');
    return failure(world.barrier('without 1'));
  },

  /** Rank 0 blocks its main thread; the others use the store meanwhile. */
  async busy(world) {
    await world.barrier('start');
    if (world.rank === 0) {
      const end = Date.now() + 1_000;
      while (Date.now() < end);
      return text(await world.store.get('seen while busy'));
    }
    const started = Date.now();
    for (let step = 0; step < 20; step += 1) await world.store.add('steps', 1);
    const key = await failure(world.store.get('never', { timeoutMs: 100, from: [0] }));
    if (world.rank === 1) await world.store.set('seen while busy', bytes('yes'));
    return { key, ms: Date.now() - started };
  },

  /** Ends without closing; no handle of the world may keep the process. */
  async unclosed(world) {
    await world.barrier('start');
    // Rank 0 holds the store: it stays until the others are gone.
    if (world.rank === 0) await failure(world.store.get('never'));
    return { unclosed: true };
  },

  /** Uses the store until a file exists, while strangers visit it. */
  async visited(world) {
    await world.barrier('start');
    const { WEFTLINE_MASTER_PORT: port, WEFTLINE_TOKEN: token } = process.env;
    if (world.rank === 1) console.log(JSON.stringify({ port: Number(port), token, pid: process.pid }));
    for (let rounds = 0; ; rounds += 1) {
      const [over] = await world.allGather('over', existsSync(process.argv[3] ?? ''));
      if (over === true) return { rounds };
    }
  },

  /** What others can see of the job's secret: names, arguments, files, the store; and what a program prints of a world. */
  async secret(world) {
    await using agent = await Agent.create(`rank ${world.rank}`, { token: world.secret });
    await agent.allocate(4096);
    await using device = await CpuDevice.create();
    await using buffer = await EpBuffer.create(world, device, {
      maxTokensPerRank: 8,
      hidden: 64,
      numExperts: 4,
      maxTopk: 2,
    });
    const names = new Set<string>(readdirSync('/dev/shm'));
    const watch = fsWatch('/dev/shm', (_event, name) => void names.add(String(name)));
    await using again = await EpBuffer.create(world, device, {
      maxTokensPerRank: 8,
      hidden: 64,
      numExperts: 4,
      maxTopk: 2,
    });
    watch.close();
    const seen = {
      commands: readdirSync('/proc')
        .filter((pid) => /^\d+$/.test(pid))
        .map((pid) => readIfThere(`/proc/${pid}/cmdline`))
        .join('\n'),
      maps: readIfThere('/proc/self/maps'),
      names: [...names].join('\n'),
      metadata: Buffer.from(agent.localMetadata()).toString('latin1'),
      world: inspect(world, { depth: 20, getters: true }) + JSON.stringify(world),
      agent: inspect(agent, { depth: 20, getters: true }) + JSON.stringify(Object.keys(agent)),
      buffers: inspect([buffer, again], { depth: 4 }),
    };
    const { WEFTLINE_TOKEN: token = 'no token' } = process.env;
    const shown = Object.entries(seen).filter(([, said]) => said.includes(world.secret) || said.includes(token));
    const named = [...names].filter((name) => name.includes(world.jobId));
    return { secret: world.secret, shown: shown.map(([name]) => name), named };
  },

  /** Leaves a file, starts a process that would outlive it, and waits for ever; rank argv[3] kills itself. */
  async forever(world) {
    // Rank 0's even leaves the process group.
    const grandchild = spawn('sleep', ['1000'], { stdio: 'ignore', detached: world.rank === 0 });
    writeFileSync(`/dev/shm/${world.filePrefix}-test-${world.rank}`, 'x');
    console.log(JSON.stringify({ pid: process.pid, grandchild: grandchild.pid, prefix: world.filePrefix }));
    await world.barrier('started');
    if (world.rank === Number(process.argv[3])) process.kill(process.pid, 'SIGKILL');
    console.log('started');
    await sleep(600_000);
  },

  /** Handles a forwarded signal. */
  async interrupted(world) {
    // Nothing else keeps a process that only waits for a signal.
    const alive = setInterval(() => {}, 1_000);
    const signal = new Promise((resolve) => {
      for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(name, resolve);
    });
    await world.barrier('ready');
    console.log('ready');
    const got = await signal;
    clearInterval(alive);
    return { got };
  },
};

const scenario = scenarios[process.argv[2] ?? ''];
if (scenario === undefined) throw new Error(`No scenario ${process.argv[2]}`);
const world = await join();
try {
  console.log(JSON.stringify((await scenario(world)) ?? null));
} catch (error) {
  await world.close(error);
  throw error;
}
if (process.argv[2] !== 'unclosed') await world.close();
