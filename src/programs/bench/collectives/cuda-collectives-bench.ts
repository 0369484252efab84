// Measures collectives of CUDA ranks by events on the device's stream, each call in turn with the same of NCCL, where it is found.
import { Communicator, type CommunicatorOptions } from '../../../collectives/index.ts';
import { invalidArgument } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Out } from '../../../native/library.ts';
import { type Nccl, NCCL_ID_BYTES, openNccl } from '../../../native/nccl.ts';
import type { World } from '../../../world/index.ts';
import type { Progress } from '../harness.ts';
import {
  BenchedCall,
  makeBenchMemory,
  type CollectivesBenchReport,
  fewerCalls,
  measureCollectives,
  repeat,
} from './collectives-bench.ts';
import {
  type BenchedKind,
  type CollectivesWorkload,
  countOf,
  cudaIterationsOf,
  type SizePlan,
  sizePlans,
} from './collectives-workload.ts';

/** Results of larger calls are not compared: bringing them to the host takes longer than all calls. */
const MAX_COMPARED = 32 << 20;
/** Calls of each kind and side until V8 has compiled what the loops run, of the first size if it is at most so large. */
const WARMUP_CALLS = 2000;
/** The same across hosts, where a call takes much longer. */
const WARMUP_CALLS_ACROSS_HOSTS = 50;
const MAX_WARMED = 1 << 20;

interface CudaCollectivesBenchOptions {
  readonly workload: CollectivesWorkload;
  readonly compare: 'nccl' | undefined;
  readonly registers: boolean;
  readonly communicator: Pick<CommunicatorOptions, 'numSms' | 'directBytes' | 'pieceBytes' | 'copyEngines'>;
  /** Said by rank 0. */
  readonly tell: (text: string) => void;
  readonly progress?: Progress;
}

/** Collective; rank 0 gets the report. */
export async function runCudaCollectivesBench(
  world: World,
  device: CudaDevice,
  { workload, compare, registers, communicator: options, tell, progress }: CudaCollectivesBenchOptions,
): Promise<CollectivesBenchReport | undefined> {
  const { numSms = 16, copyEngines = false } = options;
  await using communicator = await Communicator.create(world, device, options);
  using peer = compare === undefined ? undefined : await NcclLoop.create(world, device);
  if (compare !== undefined && peer === undefined && world.rank === 0)
    tell('no NCCL was found: nothing to compare with');
  const memory = makeBenchMemory(device, workload);
  if (registers) for (const tensor of [memory.first, memory.second]) await communicator.register(tensor);
  const plans = sizePlans(workload).map((plan) => withIterations(plan, workload));
  const preparePeer =
    peer &&
    ((kind: BenchedKind, call: BenchedCall, isInPlace: boolean) => peer.prepare(kind, call, isInPlace, workload));
  const warm = async (kind: BenchedKind): Promise<void> => {
    const bytes = plans.find((plan) => countOf(kind, plan.bytes, workload) > 0)?.bytes ?? Infinity;
    if (bytes > MAX_WARMED) return;
    const call = new BenchedCall(communicator, workload, { kind, bytes, memory });
    const usual = communicator.routes.includes('network') ? WARMUP_CALLS_ACROSS_HOSTS : WARMUP_CALLS;
    const times = fewerCalls(usual, workload);
    for (const isInPlace of [false, true]) {
      await repeat(call.prepare(isInPlace), times);
      if (preparePeer) await repeat(preparePeer(kind, call, isInPlace), times);
    }
  };
  const tensors = registers ? 'registered' : 'unregistered';
  return await measureCollectives({
    world,
    communicator,
    workload,
    memory,
    plans,
    ranksOn: `GPU (${device.properties.name}, ${numSms} SMs, ${tensors} tensors${copyEngines ? ', copy engines' : ''})`,
    warm,
    time: (call, plan) => timeOnStream(device, communicator, plan, call),
    maxCompared: MAX_COMPARED,
    peer: peer?.version,
    preparePeer,
    progress,
  });
}

/** Calls of a GPU are enqueued behind each other. */
function withIterations(plan: SizePlan, { iterations }: CollectivesWorkload): SizePlan {
  if (iterations > 0) return plan;
  const count = cudaIterationsOf(plan.bytes);
  return { ...plan, iterations: count, warmup: Math.ceil(count / 4) };
}

/** µs of a call. */
async function timeOnStream(
  device: CudaDevice,
  communicator: Communicator,
  { warmup, iterations }: SizePlan,
  call: () => unknown,
): Promise<number> {
  await repeat(call, warmup);
  await communicator.barrier();
  using begin = device.createEvent({ timing: true });
  using end = device.createEvent({ timing: true });
  begin.record(device.stream);
  await repeat(call, iterations);
  end.record(device.stream);
  await end.wait();
  return (end.millisecondsSince(begin) / iterations) * 1000;
}

const dtypeNumbers = { i32: 2, f32: 7, bf16: 9 } as const;
const operationNumbers = { sum: 0, max: 2, min: 3 } as const;

class NcclLoop implements Disposable {
  /** "NCCL 2.28.9" */
  readonly version: string;
  readonly #nccl: Nccl;
  readonly #communicator: number;
  readonly #stream: number;
  readonly #world: World;

  /** Collective; undefined on all ranks where one finds no NCCL. Multicast over NVLink stays off. */
  static async create(world: World, device: CudaDevice): Promise<NcclLoop | undefined> {
    process.env['NCCL_NVLS_ENABLE'] = '0';
    const nccl = openNccl();
    const id = new Uint8Array(NCCL_ID_BYTES);
    if (world.rank === 0) nccl?.ncclGetUniqueId(id);
    const all = await world.allGather('nccl', { isThere: nccl !== undefined, id: Buffer.from(id).toString('base64') });
    if (nccl === undefined || all.some(({ isThere }) => !isThere)) return undefined;
    device.context.enter();
    const communicator: Out = [0];
    const internal = new Uint8Array(Buffer.from(all[0]!.id, 'base64'));
    nccl.ncclCommInitRank(communicator, world.size, { internal }, world.rank);
    return new NcclLoop(world, nccl, { communicator: communicator[0], stream: device.stream.handle });
  }

  private constructor(world: World, nccl: Nccl, of: { readonly communicator: number; readonly stream: number }) {
    const version: Out = [0];
    nccl.ncclGetVersion(version);
    this.version = `NCCL ${Math.floor(version[0] / 10_000)}.${Math.floor(version[0] / 100) % 100}.${version[0] % 100}`;
    this.#world = world;
    this.#nccl = nccl;
    this.#communicator = of.communicator;
    this.#stream = of.stream;
  }

  /** The call, to be made again and again. all-to-all is never in place, which NCCL cannot do. */
  prepare(kind: BenchedKind, call: BenchedCall, isInPlace: boolean, workload: CollectivesWorkload): () => void {
    const nccl = this.#nccl;
    const [communicator, stream] = [this.#communicator, this.#stream];
    const { input, output } = call.addresses(isInPlace && kind !== 'allToAll');
    const { count } = call;
    const dtype = dtypeNumbers[workload.dtype];
    const op = operationNumbers[workload.op];
    switch (kind) {
      case 'allReduce':
        return () => void nccl.ncclAllReduce(input, output, count, dtype, op, communicator, stream);
      case 'reduceScatter':
        return () => void nccl.ncclReduceScatter(input, output, count, dtype, op, communicator, stream);
      case 'allGather':
        return () => void nccl.ncclAllGather(input, output, count, dtype, communicator, stream);
      case 'broadcast':
        return () => void nccl.ncclBroadcast(input, output, count, dtype, 0, communicator, stream);
      case 'reduce':
        return () => void nccl.ncclReduce(input, output, count, dtype, op, 0, communicator, stream);
      case 'allToAll': {
        const partBytes = count * (workload.dtype === 'bf16' ? 2 : 4);
        return () => {
          nccl.ncclGroupStart();
          for (let peer = 0; peer < this.#world.size; peer++) {
            nccl.ncclSend(input + peer * partBytes, count, dtype, peer, communicator, stream);
            nccl.ncclRecv(output + peer * partBytes, count, dtype, peer, communicator, stream);
          }
          nccl.ncclGroupEnd();
        };
      }
      default:
        throw invalidArgument('kind', kind, 'a collective that NCCL has');
    }
  }

  [Symbol.dispose](): void {
    this.#nccl.ncclCommDestroy(this.#communicator);
  }
}
