// One pass of a MoE block over all ranks, as a list of phases that can be timed one by one.
import type { Tensor } from '../../device/tensor.ts';
import type { World } from '../../world/world.ts';
import type { CombinePrecision } from '../../ep/combine-precision.ts';
import type { BlockShare } from './block-share.ts';
import type { MoeBlock } from './moe-block.ts';
import type { MoeDevice, MoeEngine } from './moe-engine.ts';

export type MoePhaseName = 'route' | 'quantize' | 'dispatch' | 'dequantize' | 'experts' | 'shared' | 'combine';

/** On GPUs a phase may end while its work is still enqueued; MoeEngine.finish() waits for that. */
export interface MoePhase {
  readonly name: MoePhaseName;
  run(): void | Promise<void>;
}

/** The phases must run in order, on all ranks; dispatch and combine are collective. */
export interface MoeForward extends AsyncDisposable {
  readonly phases: readonly MoePhase[];
  /** bf16 [T, H]: the output for this rank's tokens, after the last phase. */
  readonly output: Tensor<'bf16'>;
  /** Shared memory that this rank contributes, in bytes. */
  readonly windowBytes: number;
}

/** In which form rows travel to the experts: as they are, or as fp8 e4m3 with a scale per 128 columns. They return as bf16. */
export type MoeRowDtype = 'bf16' | 'fp8';

export interface ForwardOptions {
  readonly world: World;
  readonly device: MoeDevice;
  readonly engine: MoeEngine;
  readonly block: MoeBlock;
  readonly share: BlockShare;
  readonly dtype: MoeRowDtype;
  readonly combinePrecision: CombinePrecision;
}

/** The first phase of a block whose file has a gate instead of expert ids. */
export function routePhase({ route }: BlockShare): readonly MoePhase[] {
  return route === undefined ? [] : [{ name: 'route', run: route }];
}
