// What one simulated rank does in a scenario: its calls, whose results are compared bit for bit with the reference.
import { toBf16 } from '../../../core/dtype.ts';
import { seededRandom } from '../../../core/seeded-random.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { DispatchResult, EpBuffer, RowsLike } from '../../../ep/index.ts';
import {
  referenceCombine,
  referenceCombineWeights,
  referenceDispatch,
  type ReferenceReceived,
} from '../../../reference/ep-buffer.ts';
import type { ReferenceInput } from '../../../reference/reference-input.ts';
import { FP8_GROUP } from '../../../abi/element-formats.ts';
import type { EpRound, EpScenario } from './ep-scenario.ts';

/** What a round should do, at all ranks. */
export interface ExpectedRound {
  readonly round: EpRound;
  readonly inputs: readonly ReferenceInput[];
  /** Rows of a cached dispatch. */
  readonly others: readonly ReferenceInput[];
  readonly received: readonly ReferenceReceived[];
  readonly receivedOthers: readonly ReferenceReceived[];
  /** Rows of each rank's experts, by combine, and their weights. */
  readonly outputs: readonly (readonly (readonly (readonly number[])[])[])[];
  readonly weights: readonly (readonly (readonly number[])[])[];
}

export function expectRound({ config, ranks }: EpScenario, round: EpRound): ExpectedRound {
  const { hidden, numExperts } = config;
  const all = Array.from({ length: ranks }, (_, rank) => rank);
  const choices = all.map((rank) => choicesOf(round, rank));
  const inputsFrom = (salt: number): ReferenceInput[] =>
    all.map((rank) => inputOf(round, choices[rank]!, hidden, seededRandom(round.seed + salt + rank)));
  const [inputs, others] = [inputsFrom(1000), inputsFrom(2000)];
  const options = { numExperts, expertAlignment: round.alignment };
  const received = referenceDispatch(inputs, options);
  return {
    round,
    inputs,
    others,
    received,
    receivedOthers: referenceDispatch(others, options),
    outputs: Array.from({ length: round.combines }, (_, combine) =>
      received.map(({ x }, rank) => rowsOf(x.length, hidden, seededRandom(round.seed + 3000 + 100 * combine + rank))),
    ),
    weights: received.map(({ x }, rank) => fractions(x.length, round.topk, seededRandom(round.seed + 4000 + rank))),
  };
}

function choicesOf({ seed, tokens, topk, dropped, experts }: EpRound, rank: number): number[][] {
  const random = seededRandom(seed + rank);
  return Array.from({ length: tokens[rank]! }, () =>
    Array.from({ length: topk }, () => (random() < dropped ? -1 : Math.floor(random() * experts))),
  );
}

function inputOf(round: EpRound, topkIdx: readonly number[][], hidden: number, random: () => number): ReferenceInput {
  const count = topkIdx.length;
  const x = rowsOf(count, hidden, random);
  if (!round.fp8) return { x, topkIdx, ...(round.weights && { topkWeights: fractions(count, round.topk, random) }) };
  return {
    x: x.map((row) => row.map((bits) => bits & 0xff)),
    scales: fractions(count, Math.ceil(hidden / FP8_GROUP), random),
    topkIdx,
    ...(round.weights && { topkWeights: fractions(count, round.topk, random) }),
  };
}

function rowsOf(count: number, width: number, random: () => number): number[][] {
  return Array.from({ length: count }, () => Array.from({ length: width }, () => toBf16((random() - 0.5) * 16)));
}

function fractions(count: number, width: number, random: () => number): number[][] {
  return Array.from({ length: count }, () => Array.from({ length: width }, () => Math.fround(random())));
}

/** The calls of one rank in one round. `pause` is called before each; `note` hears what is wrong. */
export class RankRound {
  readonly #buffer: EpBuffer;
  readonly #device: CpuDevice;
  readonly #rank: number;
  readonly #of: ExpectedRound;
  readonly #note: (problem: string) => void;
  readonly #tensors: Tensor[] = [];

  constructor(buffer: EpBuffer, of: ExpectedRound, note: (problem: string) => void) {
    this.#buffer = buffer;
    this.#device = buffer.device as CpuDevice;
    this.#rank = buffer.group.rank;
    this.#of = of;
    this.#note = note;
  }

  /** `signal` ends each call. */
  async run(pause: () => Promise<void>, signal: AbortSignal): Promise<void> {
    try {
      const { round, others, receivedOthers } = this.#of;
      await pause();
      const result = await this.#dispatch(signal);
      if (round.cached) {
        await pause();
        const x = this.#rows(others[this.#rank]!);
        const cached = await this.#buffer.dispatch({ x, handle: result.handle, signal });
        scramble(x);
        this.#compareRows(cached.recvX, receivedOthers[this.#rank]!, 'a cached dispatch');
      }
      for (let number = 0; number < round.combines; number++) {
        await pause();
        await this.#combine(result, number, signal);
      }
      result.handle.close();
    } finally {
      for (const tensor of this.#tensors) tensor.close();
    }
  }

  async #dispatch(signal: AbortSignal): Promise<DispatchResult> {
    const { round, inputs, received } = this.#of;
    const { topk, weights, givenLayout, wideIndex, worst, alignment } = round;
    const input = inputs[this.#rank]!;
    const count = input.x.length;
    const topkIdx = wideIndex
      ? this.#tensor('i64', [count, topk], BigInt64Array.from(input.topkIdx.flat(), BigInt))
      : this.#tensor('i32', [count, topk], Int32Array.from(input.topkIdx.flat()));
    const layout = givenLayout ? this.#buffer.getDispatchLayout({ topkIdx }) : undefined;
    const numWorstTokens = worst ? Math.max(0, ...received.map(({ x }) => x.length)) : 0;
    const x = this.#rows(input);
    const result = await this.#buffer.dispatch({
      x,
      topkIdx,
      ...(weights && { topkWeights: this.#tensor('f32', [count, topk], flat32(input.topkWeights ?? [])) }),
      ...(layout && { layout }),
      expertAlignment: alignment,
      numWorstTokens,
      signal,
    });
    layout?.close();
    scramble(x);
    this.#compareReceived(result, numWorstTokens);
    return result;
  }

  async #combine({ handle }: DispatchResult, number: number, signal: AbortSignal): Promise<void> {
    const { round, inputs, received, weights } = this.#of;
    const outputs = this.#of.outputs[number]!;
    const { hidden, combinePrecision } = this.#buffer.config;
    const { topk, biases, inPlace } = round;
    const count = inputs[this.#rank]!.x.length;
    const own = outputs[this.#rank]!;
    const y = inPlace
      ? this.#buffer.combineInput(handle)
      : this.#tensor('bf16', [handle.rows, hidden], new Uint16Array(handle.rows * hidden));
    y.view().set(own.flat());
    const rowWeights = new Float32Array(handle.rows * topk);
    rowWeights.set(flat32(weights[this.#rank]!));
    const topkWeights = round.weights ? this.#tensor('f32', [handle.rows, topk], rowWeights) : undefined;
    const bias = Array.from({ length: biases }, (_, at) => rowsOf(count, hidden, seededRandom(round.seed + at)));
    const tensors = bias.map((rows) => this.#tensor('bf16', [count, hidden], Uint16Array.from(rows.flat())));
    const { combinedX, combinedTopkWeights } = await this.#buffer.combine({
      x: y,
      handle,
      ...(topkWeights && { topkWeights }),
      ...(tensors.length > 0 && { bias: tensors as [Tensor<'bf16'>] }),
      signal,
    });
    const { hosts } = this.#buffer.group.topology;
    const reference = { received, outputs, weights, hosts, combinePrecision };
    for (let token = 0; token < count; token++) {
      const place = { rank: this.#rank, token, hidden, topk, bias: bias.map((rows) => rows[token]!) };
      const sums = combinedX.view().subarray(token * hidden, (token + 1) * hidden);
      this.#compare(sums, referenceCombine(reference, place), `the sums of token ${token}`);
      if (combinedTopkWeights === undefined) continue;
      const sum = combinedTopkWeights.view().subarray(token * topk, (token + 1) * topk);
      this.#compare(sum, referenceCombineWeights(reference, place), `the weights of token ${token}`);
    }
    combinedX.close();
    combinedTopkWeights?.close();
  }

  #compareReceived({ recvX, recvTopkIdx, recvTopkWeights, ...result }: DispatchResult, worst: number): void {
    const want = this.#of.received[this.#rank]!;
    const { topk, weights } = this.#of.round;
    const { handle, numRecvTokensPerExpert } = result;
    const surplus = worst === 0 ? 0 : worst - want.x.length;
    const tail = (width: number, value: number): number[] => Array.from({ length: surplus * width }, () => value);
    this.#compareRows(recvX, want, 'a dispatch');
    this.#compare(handle.recvSrcIdx.view(), [...want.sourceToken, ...tail(1, -1)], 'source tokens');
    this.#compare([...recvTopkIdx!.view()].map(Number), [...want.topkIdx.flat(), ...tail(topk, -1)], 'choices');
    if (weights) this.#compare(recvTopkWeights!.view(), [...want.topkWeights.flat(), ...tail(topk, 0)], 'weights');
    if (worst === 0) this.#compare(numRecvTokensPerExpert, want.numRecvTokensPerExpert, 'tokens of experts');
  }

  #compareRows(got: RowsLike, { x, scales }: ReferenceReceived, what: string): void {
    const rows = x.flat();
    const data = 'data' in got ? got.data : got;
    this.#compare(data.view().subarray(0, rows.length), rows, `rows of ${what}`);
    const wanted = scales.flat();
    if ('data' in got) this.#compare(got.scales.view().subarray(0, wanted.length), wanted, `scales of ${what}`);
  }

  #compare(got: ArrayLike<number>, want: readonly number[], what: string): void {
    let at = 0;
    while (at < want.length && Object.is(got[at], want[at])) at++;
    if (at === want.length && got.length === at) return;
    this.#note(
      `rank ${this.#rank}: ${what} are wrong from element ${at} of ${want.length} on: ${got[at]}, not ${want[at]}`,
    );
  }

  #rows({ x, scales }: ReferenceInput): RowsLike {
    const { hidden } = this.#buffer.config;
    if (scales === undefined) return this.#tensor('bf16', [x.length, hidden], Uint16Array.from(x.flat()));
    const groups = Math.ceil(hidden / FP8_GROUP);
    return {
      data: this.#tensor('fp8e4m3', [x.length, hidden], Uint8Array.from(x.flat())),
      scales: this.#tensor('f32', [x.length, groups], flat32(scales)),
    };
  }

  #tensor<D extends 'bf16' | 'fp8e4m3' | 'f32' | 'i32' | 'i64'>(
    dtype: D,
    shape: readonly number[],
    values: ReturnType<Tensor<D>['view']>,
  ): Tensor<D> {
    const tensor = this.#device.empty(dtype, shape);
    this.#tensors.push(tensor);
    (tensor.view() as { set(from: typeof values): void }).set(values);
    return tensor;
  }
}

/** The caller's again once a call is over: whoever still reads it reads something else. */
function scramble(rows: RowsLike): void {
  const tensors = 'data' in rows ? [rows.data, rows.scales] : [rows];
  for (const tensor of tensors) tensor.view().fill(SCRAMBLED);
}

const SCRAMBLED = 0x55;

function flat32(values: readonly (readonly number[])[]): Float32Array {
  return Float32Array.from(values.flat());
}
