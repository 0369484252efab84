// The same calls by NCCL, on the same tensors and the same stream.
import { invalidArgument } from '../../../core/errors.ts';
import { type Nccl, NCCL_ID_BYTES, openNccl } from '../../../native/nccl.ts';
import type { Out } from '../../../native/library.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { World } from '../../../world/index.ts';
import type { BenchedCall } from './benched-call.ts';
import type { BenchedKind, CollectivesWorkload } from './collectives-workload.ts';

const dtypeNumbers = { i32: 2, f32: 7, bf16: 9 } as const;
const operationNumbers = { sum: 0, max: 2, min: 3 } as const;

export class NcclLoop implements Disposable {
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
