// What a rank does in the tests of groups: argv names the scenario; the last line printed is its result as JSON.
import { CpuDevice, WeftlineError } from 'weftline';
import { Agent, loadPublished, publishMetadata, worldMetadataStore } from 'weftline/agent';
import { EpBuffer } from 'weftline/ep';
import { join, type RankGroup, type World } from 'weftline/world';

const [hidden, tokens] = [16, 6];

async function failure(wait: Promise<unknown>) {
  try {
    await wait;
  } catch (error) {
    if (!(error instanceof WeftlineError)) throw error;
    const { code, message, rank } = error;
    return { code, message, rank };
  }
  throw new Error('The call was expected to fail');
}

function openBuffer(group: RankGroup, device: CpuDevice, numExperts = 2 * group.size): Promise<EpBuffer> {
  return EpBuffer.create(group, device, { maxTokensPerRank: tokens, hidden, numExperts, maxTopk: 2 });
}

/** Every token goes to the first and the last rank of the group; returns how many rows came here, and each token's sum. */
async function useBuffer(buffer: EpBuffer, device: CpuDevice): Promise<readonly [number, number]> {
  const last = buffer.config.numExperts - 1;
  const ids = Array.from({ length: tokens }, () => [0, last]).flat();
  const topkIdx = await device.tensor('i32', [tokens, 2], Int32Array.from(ids));
  const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(0x3f80));
  const { recvX, handle } = await buffer.dispatch({ x, topkIdx });
  const { combinedX } = await buffer.combine({ x: recvX, handle });
  const sum = combinedX.view()[0]!;
  const rows = handle.rows;
  for (const one of [topkIdx, x, handle, combinedX]) one.close();
  return [rows, sum];
}

const scenarios: Readonly<Record<string, (world: World) => Promise<unknown>>> = {
  /** Calls that are under way together on rank 0 and one after another on the others; then some that fail on rank 0 alone. */
  async overlapping(world) {
    const all = world.ranks;
    const [split, group, again] =
      world.rank === 0
        ? await Promise.all([world.split({ color: 1 }), world.group(all), world.group(all)])
        : [await world.split({ color: 1 }), await world.group(all), await world.group(all)];
    const gather = (of: RankGroup, text: string): Promise<string[]> => of.allGather('v', `${text}${world.rank}`);
    const early = world.rank === 0 ? await failure(world.group(all, { timeoutMs: 0 })) : undefined;
    await world.barrier('after');
    const last = await world.group(all);
    return [
      await gather(split, 's'),
      await gather(group, 'g'),
      await gather(again, 'a'),
      await gather(last, 'l'),
      early?.code,
    ];
  },

  /** Groups by host, of some ranks in an order of their own, of parts of a group, and of one; all at once. */
  async all(world) {
    await using device = await CpuDevice.create();
    const host = await world.split({ color: world.topology.hostIndex });
    const none = await world.split({ color: world.rank === 0 ? undefined : 'rest', key: -world.rank });
    const self = await world.group([world.rank]);
    const outer = world.rank % 3 === 0 ? await world.group([3, 0]) : undefined;
    const inner = await host.split({ color: host.rank });
    await Promise.all([world, host, none, self, outer, inner].map(async (group) => group?.barrier('b')));
    const all = await Promise.all([world, host, none, outer].map(async (group) => group?.allGather('g', world.rank)));
    const refused = await failure(world.group([(world.rank + 1) % 4, (world.rank + 2) % 4]));
    const twice = await failure(world.group([world.rank, world.rank]));
    const badKey = await failure(world.split({ color: 1, key: world.rank === 2 ? Number.NaN : 0 }));
    const order = await failure(world.group(world.rank === 1 ? [1, 0, 2, 3] : [0, 1, 2, 3]));
    await using wide = await openBuffer(world, device);
    await using buffer = await openBuffer(host, device);
    await using alone = await openBuffer(self, device);
    const [used, usedAlone, usedWide] = await Promise.all([
      useBuffer(buffer, device),
      useBuffer(alone, device),
      useBuffer(wide, device),
    ]);
    const uneven = await failure(openBuffer(host, device, 2 * host.size * (1 + (world.rank % 2))));
    const { hosts, hostIndex, scaleUpIndex } = world.topology;
    const { localRanks, nodeCount, machineRank } = world;
    return {
      facts: { hosts, hostIndex, scaleUpIndex, localRanks, nodeCount, machineRank },
      ranks: [host.ranks, none?.ranks ?? null, self.ranks, outer?.ranks ?? null, inner.ranks],
      all: all.map((list) => list ?? null),
      refused,
      twice,
      badKey,
      order,
      used: [...used, ...usedAlone, ...usedWide],
      uneven,
    };
  },

  /** Rank 3 dies; the ranks of the other group go on, those of its own hear of it, and the world has failed. */
  async death(world) {
    await using device = await CpuDevice.create();
    const group = await world.split({ color: world.rank < 2 ? 'lower' : 'upper' });
    await using buffer = await openBuffer(group, device);
    await useBuffer(buffer, device);
    await world.barrier('ready');
    if (world.rank === 3) process.kill(process.pid, 'SIGKILL');
    const inWorld = await failure(world.barrier('after'));
    const inGroup = world.rank === 2 ? await failure(useBuffer(buffer, device)) : await useBuffer(buffer, device);
    if (world.rank < 2) await group.barrier('after');
    // Rank 2 heard of the loss before its call failed, and the store told all before it failed the barrier.
    const lost = [world.peerLost.aborted, group.peerLost.aborted];
    console.log(JSON.stringify({ inWorld, inGroup, lost }));
    // Rank 0 holds the store: the others need it until they have printed theirs.
    await world.close();
    process.exit(4);
  },

  /** Tells which backends agents have for each other. */
  async agents(world) {
    const store = worldMetadataStore(world.store);
    await using agent = await Agent.create(`rank ${world.rank}`, {
      token: world.secret,
      backends: ['local', 'multipath'],
    });
    await publishMetadata(agent, store);
    const why: (string | null)[] = [];
    const used: string[] = [];
    for (let rank = 0; rank < world.size; rank += 1) {
      if (rank === world.rank) continue;
      const peer = await loadPublished(agent, store, `rank ${rank}`);
      why.push(agent.explain(peer).find(({ backend }) => backend === 'local')?.why ?? null);
      used.push(await agent.connect(peer));
    }
    await world.barrier('done');
    return { why, used };
  },

  /** Wrong calls on a group in the reverse order of world ranks. */
  async errors(world) {
    await using device = await CpuDevice.create();
    const group = await world.split({ color: 'all', key: -world.rank });
    await using buffer = await openBuffer(group, device);
    const topkIdx = await device.tensor('i32', [1, 2], Int32Array.of(0, buffer.config.numExperts - 1));
    const topkWeights = await device.tensor('f32', [1, 2], Float32Array.of(1, 1));
    const x = await device.tensor('bf16', [1, hidden], new Uint16Array(hidden));
    const bound = world.rank === 2 ? { numWorstTokens: 2 } : {};
    const capacity = await failure(buffer.dispatch({ x, topkIdx, ...bound }));
    const weights = world.rank === 1 ? { topkWeights } : {};
    const mismatch = await failure(buffer.dispatch({ x, topkIdx, ...weights }));
    const call = await failure(world.rank === 0 ? buffer.barrier() : buffer.dispatch({ x, topkIdx }));
    return { capacity, mismatch, call };
  },

  /** Rank 1 stays away from a barrier of a group. */
  async missing(world) {
    const group = await world.group([2, 1, 0]);
    const lonely = world.rank === 1 ? null : await failure(group.barrier('lonely', { timeoutMs: 300 }));
    if (lonely !== null) await world.store.setJson(`tried ${world.rank}`, true);
    // A rank that closed its world would be what the other one misses.
    await world.store.wait(['tried 0', 'tried 2']);
    return lonely;
  },
};

/** The ranks start with different settings. */
if (process.argv[2] === 'differ') {
  const hosts = process.env['WEFTLINE_RANK'] === '1' ? '1' : '2';
  const failed = await failure(join({ environment: { ...process.env, WEFTLINE_HOSTS: hosts } }));
  console.log(JSON.stringify(failed));
  process.exit(0);
}
const world = await join();
const result = await scenarios[process.argv[2] ?? '']?.(world);
console.log(JSON.stringify(result));
await world.close();
