// A MoE block's computations on a CPU rank: every call is done when it returns.
import { invalidArgument } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { dequantizeRows, quantizeRows } from '../../device/cpu/fp8-rows.ts';
import type { Tensor } from '../../device/tensor.ts';
import {
  type ExpertRows,
  expertShape,
  type ExpertWeights,
  type GateOptions,
  type LocalExperts,
  type MoeEngine,
  type Routing,
  type TokenRows,
} from './moe-engine.ts';
import { routeTopk } from './moe-block.ts';

export function createCpuMoeEngine(device: CpuDevice): MoeEngine {
  return {
    product: 'CPU kernels',
    createExperts: (weights) => new CpuExperts(device, weights),
    openGate: (options) => openGate(device, options),
    quantizeRows: (x, out) => void quantizeRows(device, x, { out }),
    dequantizeRows: (rows, out) => void dequantizeRows(device, rows, out),
    finish: () => Promise.resolve(),
    [Symbol.dispose]() {},
  };
}

async function openGate(device: CpuDevice, { block, x, weights }: GateOptions): Promise<Routing> {
  const tokens = x.shape[0] ?? 0;
  const topkIdx = device.empty('i64', [tokens, block.topk]);
  const topkWeights = device.empty('f32', [tokens, block.topk]);
  const shape = [block.experts, block.hidden];
  const gate = await device.tensor('bf16', shape, weights.gate);
  const rest = weights.gateRest && (await device.tensor('bf16', shape, weights.gateRest));
  const logits = device.empty('f32', [tokens, block.experts]);
  const more = device.empty('f32', [rest === undefined ? 0 : tokens, block.experts]);
  const shared = weights.sharedGate && (await openSharedGate(device, x, weights.sharedGate));
  const route = (): void => {
    const multiply = (out: Tensor<'f32'>, by: Tensor<'bf16'>): void =>
      device.kernels.matmul(out.address, x.address, 0, by.address, tokens, block.experts, block.hidden);
    multiply(logits, gate);
    if (rest !== undefined) {
      multiply(more, rest);
      const sums = logits.view();
      for (const [at, value] of more.view().entries()) sums[at] = sums[at]! + value;
    }
    const chosen = routeTopk(logits.view(), block, weights.bias);
    topkIdx.view().set(chosen.ids);
    topkWeights.view().set(chosen.weights);
    shared?.route();
  };
  route();
  const release = (): void => {
    for (const tensor of [topkIdx, topkWeights, gate, rest, logits, more]) tensor?.close();
    shared?.[Symbol.dispose]();
  };
  const found = shared === undefined ? {} : { sharedWeights: shared.weights };
  return { topkIdx, topkWeights, ...found, route, [Symbol.dispose]: release };
}

interface SharedGate extends Disposable {
  /** [T] */
  readonly weights: Tensor<'f32'>;
  route(): void;
}

/** The sigmoid of the tokens' products with one row. */
async function openSharedGate(device: CpuDevice, x: Tensor<'bf16'>, values: Uint16Array): Promise<SharedGate> {
  const [tokens = 0, hidden = 0] = x.shape;
  const gate = await device.tensor('bf16', [1, hidden], values);
  const weights = device.empty('f32', [tokens]);
  return {
    weights,
    route() {
      device.kernels.matmul(weights.address, x.address, 0, gate.address, tokens, 1, hidden);
      const sums = weights.view();
      for (const [token, sum] of sums.entries()) sums[token] = 1 / (1 + Math.exp(-sum));
    },
    [Symbol.dispose]() {
      gate.close();
      weights.close();
    },
  };
}

// The experts of a CPU rank: block by block through WebAssembly kernels.

/** Rows that go through an expert at once: bounds the scratch memory and keeps it in the core's cache. */
const BLOCK_ROWS = 128;

/** What forwardTokens works in. */
interface ForwardScratch {
  /** Sums of the rows, [rows, H]. */
  readonly sums: Tensor<'f32'>;
  /** The rows of each expert, one expert after the other, and their weights. */
  readonly rowList: Tensor<'i32'>;
  readonly weightList: Tensor<'f32'>;
}

export class CpuExperts implements LocalExperts {
  readonly count: number;
  readonly hidden: number;
  readonly intermediate: number;
  readonly #device: CpuDevice;
  readonly #weights: ExpertWeights;
  /** f32 [BLOCK_ROWS, 2I]: result of the first layer. */
  readonly #inner: Tensor<'f32'>;
  /** bf16 [BLOCK_ROWS, I]: after SwiGLU. */
  readonly #active: Tensor<'bf16'>;
  /** f32 [BLOCK_ROWS, H]: result of the second layer. */
  readonly #outer: Tensor<'f32'>;
  #scratch: ForwardScratch;

  /** Takes ownership of the weights. H and I must be multiples of 8. Fails with WL_INVALID_ARGUMENT. */
  constructor(device: CpuDevice, weights: ExpertWeights) {
    const { count, hidden, intermediate } = expertShape(weights);
    this.count = count;
    this.hidden = hidden;
    this.intermediate = intermediate;
    this.#device = device;
    this.#weights = weights;
    this.#inner = device.empty('f32', [BLOCK_ROWS, 2 * intermediate]);
    this.#active = device.empty('bf16', [BLOCK_ROWS, intermediate]);
    this.#outer = device.empty('f32', [BLOCK_ROWS, hidden]);
    this.#scratch = emptyScratch(device, 0, 0);
  }

  /** Counts the choices itself. */
  forwardTokens({ x, topkIdx, topkWeights }: Omit<TokenRows, 'rowsPerExpert'>, out: Tensor<'bf16'>): void {
    const { kernels } = this.#device;
    const rows = x.shape[0] ?? 0;
    const choices = this.#listByExpert(topkIdx, topkWeights);
    const { sums, rowList, weightList } = this.#reserve(rows, choices.rows.length);
    sums.view().fill(0, 0, rows * this.hidden);
    rowList.view().set(choices.rows);
    weightList.view().set(choices.weights);
    for (let expert = 0; expert < this.count; expert++) {
      const end = choices.starts[expert + 1]!;
      for (let start = choices.starts[expert]!; start < end; start += BLOCK_ROWS) {
        const count = Math.min(BLOCK_ROWS, end - start);
        const list = rowList.address + start * 4;
        this.#applyLayers(expert, { x: x.address, rows: list, count });
        const weights = weightList.address + start * 4;
        kernels.accumulateRows(sums.address, list, weights, this.#outer.address, count, this.hidden);
      }
    }
    kernels.roundRows(out.address, sums.address, 0, rows, this.hidden);
  }

  forwardExperts({ x, rowsPerExpert, weights }: ExpertRows, out: Tensor<'bf16'>): void {
    const { kernels } = this.#device;
    const rowBytes = this.hidden * 2;
    let end = 0;
    for (const [expert, rows] of rowsPerExpert.entries()) {
      let start = end;
      end += rows;
      for (; start < end; start += BLOCK_ROWS) {
        const count = Math.min(BLOCK_ROWS, end - start);
        this.#applyLayers(expert, { x: x.address + start * rowBytes, rows: 0, count });
        const weight = weights === undefined ? 0 : weights.address + start * 4;
        kernels.roundRows(out.address + start * rowBytes, this.#outer.address, weight, count, this.hidden);
      }
    }
  }

  [Symbol.dispose](): void {
    const { gateUp, down } = this.#weights;
    for (const tensor of [gateUp, down, this.#inner, this.#active, this.#outer]) tensor.close();
    disposeScratch(this.#scratch);
  }

  /** Makes room for `rows` sums and `choices` list entries; kept from call to call, so that pages are not fetched anew. */
  #reserve(rows: number, choices: number): ForwardScratch {
    const { sums, rowList } = this.#scratch;
    if (sums.elements >= rows * this.hidden && rowList.elements >= choices) return this.#scratch;
    const old = this.#scratch;
    this.#scratch = emptyScratch(
      this.#device,
      Math.max(sums.elements, rows * this.hidden),
      Math.max(rowList.elements, choices),
    );
    disposeScratch(old);
    return this.#scratch;
  }

  /** One block of rows, at most BLOCK_ROWS, through both layers of an expert into #outer. */
  #applyLayers(expert: number, block: { readonly x: number; readonly rows: number; readonly count: number }): void {
    const { kernels } = this.#device;
    const { hidden, intermediate } = this;
    const { count } = block;
    const gateUp = this.#weights.gateUp.address + expert * 2 * intermediate * hidden * 2;
    const down = this.#weights.down.address + expert * hidden * intermediate * 2;
    const inner = this.#inner.address;
    const active = this.#active.address;
    kernels.matmul(inner, block.x, block.rows, gateUp, count, 2 * intermediate, hidden);
    kernels.swiglu(active, inner, count, intermediate);
    kernels.matmul(this.#outer.address, active, 0, down, count, hidden, intermediate);
  }

  /** The rows of every local expert, one expert after the other: expert e's stand from starts[e] to starts[e + 1]. */
  #listByExpert(
    topkIdx: Tensor<'i32' | 'i64'>,
    topkWeights: Tensor<'f32'>,
  ): { readonly starts: Int32Array; readonly rows: Int32Array; readonly weights: Float32Array } {
    const ids = topkIdx.view();
    const topk = topkIdx.shape[1] ?? 1;
    const starts = new Int32Array(this.count + 1);
    for (let at = 0; at < ids.length; at++) {
      const expert = Number(ids[at]);
      if (expert >= this.count) throw invalidArgument('topkIdx', expert, `-1 to ${this.count - 1}`);
      if (expert >= 0) starts[expert + 1] = starts[expert + 1]! + 1;
    }
    for (let expert = 0; expert < this.count; expert++) {
      starts[expert + 1] = starts[expert + 1]! + starts[expert]!;
    }
    const next = starts.slice(0, this.count);
    const rows = new Int32Array(starts[this.count]!);
    const weights = new Float32Array(rows.length);
    const given = topkWeights.view();
    for (let at = 0; at < ids.length; at++) {
      const expert = Number(ids[at]);
      if (expert < 0) continue;
      const slot = next[expert]!;
      next[expert] = slot + 1;
      rows[slot] = Math.floor(at / topk);
      weights[slot] = given[at]!;
    }
    return { starts, rows, weights };
  }
}

function emptyScratch(device: CpuDevice, sums: number, choices: number): ForwardScratch {
  return {
    sums: device.empty('f32', [sums]),
    rowList: device.empty('i32', [choices]),
    weightList: device.empty('f32', [choices]),
  };
}

function disposeScratch({ sums, rowList, weightList }: ForwardScratch): void {
  for (const tensor of [sums, rowList, weightList]) tensor.close();
}
