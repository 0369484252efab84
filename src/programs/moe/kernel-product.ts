// The grouped product by our own kernel: all groups in one launch, a row's bits independent of the others.
import { GROUPED_TILE_COLUMNS, type groupedProductArguments } from '../../abi/moe-arguments.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { GROUPED_SHARED_BYTES, GROUPED_THREADS, groupedProductKernels } from '../../device/cuda/kernels/moe.ts';
import type { LaunchPlan } from '../../device/cuda/launch-plan.ts';
import type { GroupedOperands, GroupedProduct, Groups } from './grouped-product.ts';

/** `why` it is taken, for the report. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function createKernelProduct(device: CudaDevice, why: string): Promise<GroupedProduct> {
  const { groupedProduct } = await device.loadKernels(groupedProductKernels);
  return new KernelProduct(
    groupedProduct.plan({ grid: 1, block: GROUPED_THREADS, sharedBytes: GROUPED_SHARED_BYTES }),
    why,
  );
}

class KernelProduct implements GroupedProduct {
  readonly name: string;
  readonly #plan: LaunchPlan<keyof typeof groupedProductArguments.offset>;

  constructor(plan: LaunchPlan<keyof typeof groupedProductArguments.offset>, why: string) {
    this.name = `tensor core kernel (${why})`;
    this.#plan = plan;
  }

  multiply({ x, w, out, n, k }: GroupedOperands, groups: Groups): void {
    if (groups.tiles === 0) return;
    const set = this.#plan.arguments;
    set.set('x', x);
    set.set('w', w);
    set.set('out', out);
    set.set('starts', groups.starts);
    set.set('tileStarts', groups.tileStarts);
    set.set('groups', groups.rows.length);
    set.set('n', n);
    set.set('k', k);
    this.#plan.setGrid([Math.ceil(n / GROUPED_TILE_COLUMNS), groups.tiles]);
    this.#plan.launch();
  }

  [Symbol.dispose](): void {}
}
