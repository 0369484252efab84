// A rank's part of a block whose busy experts have copies: which experts it has then, and where its tokens go.
import type { World } from '../../world/world.ts';
import { ExpertLoads } from '../../ep/placement/expert-loads.ts';
import { Placement } from '../../ep/placement/placement.ts';
import { rebalanceExpertsAsync } from '../../ep/placement/rebalance-async.ts';
import { type BlockShare, readExperts, type ShareOptions } from './block-share.ts';
import type { MoeBlock } from './moe-block.ts';
import type { MoeDevice } from './moe-engine.ts';

/** Collective. Where copies should be for the choices of all ranks' tokens; `count`: copies besides the first of each expert. */
export async function planRedundant(
  world: World,
  { block, share, count }: { readonly block: MoeBlock; readonly share: BlockShare; readonly count: number },
): Promise<Placement> {
  const loads = new ExpertLoads({ layers: 1, experts: block.experts, window: 1 });
  loads.addChoices(0, await share.topkIdx.toHost());
  const weights = await loads.gather(world);
  const plan = await rebalanceExpertsAsync(weights, { replicas: block.experts + count, ranks: world.size });
  return new Placement(plan, { rank: world.rank, hosts: world.topology.hosts });
}

/** `share` with physical experts: the choices, and the experts of this rank. It borrows all else, and is disposed first. */
export async function replicateShare(
  device: MoeDevice,
  options: Pick<ShareOptions, 'source' | 'engine'> & {
    readonly share: BlockShare;
    readonly placement: Placement;
  },
): Promise<BlockShare> {
  const { share, placement } = options;
  const { topkIdx: logical } = share;
  const topkIdx = await device.tensor('i64', logical.shape, placement.route(await logical.toHost()));
  const experts = await readExperts(device, options, [...placement.localExperts()]);
  const route = (): void => {
    share.route?.();
    placement.route(logical.view(), { out: topkIdx.view() });
  };
  return {
    ...share,
    topkIdx,
    experts,
    // The choices of GPUs are made once, on the host.
    route: device.kind === 'cpu' ? route : undefined,
    [Symbol.dispose]() {
      topkIdx.dispose();
      experts[Symbol.dispose]();
    },
  };
}
