// What a rank runs that `weftline run --aggregators` has started: adds up for the sparse all-reduces that the others make.
import { SparseAllReduce } from '../../collectives/index.ts';
import { WeftlineError } from '../../core/errors.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { join, type World } from '../../world/index.ts';

/** The others may take as long as they like before they join, and before they make the next one. */
const UNBOUNDED_MS = 2 ** 31 - 1;
/** Errors of a creation that all ranks get alike: those that make another one need this rank again. */
const refusals: readonly string[] = ['WL_INVALID_ARGUMENT', 'WL_CONFIG_MISMATCH', 'WL_MEMORY', 'WL_SHARED_MEMORY'];

const world = await join({ timeoutMs: UNBOUNDED_MS });
try {
  await using device = await CpuDevice.create();
  await aggregate(world, device);
} catch (error) {
  await world.close(error);
  throw error;
}
await world.close();

/** Adds up until the others close their world. */
async function aggregate(of: World, device: CpuDevice): Promise<void> {
  const failed = new AbortController();
  const serving: Promise<void>[] = [];
  for (;;) {
    const reducer = await next(of, device, failed.signal);
    if (reducer === undefined) break;
    const served = serve(reducer);
    served.catch((error: unknown) => failed.abort(error));
    serving.push(served);
  }
  await Promise.all(serving);
}

async function serve(reducer: SparseAllReduce): Promise<void> {
  try {
    await reducer.serve();
  } finally {
    await reducer.close();
  }
}

/** undefined when the others have ended well. */
async function next(of: World, device: CpuDevice, signal: AbortSignal): Promise<SparseAllReduce | undefined> {
  for (;;) {
    try {
      return await SparseAllReduce.create(of, device, { timeoutMs: UNBOUNDED_MS, signal });
    } catch (error) {
      if (!(error instanceof WeftlineError) || signal.aborted) throw error;
      if (error.code === 'WL_PEER_LOST' && !of.peerLost.aborted) return undefined;
      if (!refusals.includes(error.code)) throw error;
    }
  }
}
