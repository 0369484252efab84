// Rows of bf16 as rows of fp8 with scales, and back, on the CPU device.
import { checkOptions, type OptionNames, requireFlag } from '../../core/check-options.ts';
import type { DType } from '../../core/dtype.ts';
import { invalidArgument } from '../../core/errors.ts';
import { FP8_GROUP } from '../../abi/element-formats.ts';
import { type ScaledRows, Tensor } from '../tensor.ts';
import type { CpuDevice } from './cpu-device.ts';

/** How rows are quantized. */
interface QuantizeOptions {
  /** Tensors to write to; by default new ones that the caller closes. */
  readonly out?: ScaledRows;
  /** Round scales up to powers of two, for hardware that stores them as exponents; false by default. */
  readonly roundScale?: boolean;
}

const quantizeNames: OptionNames<QuantizeOptions> = { out: true, roundScale: true };

/**
 * Quantises each row of x (bf16 [T, H], H a multiple of 8) in groups of 128 columns: the scale is max(|x|, 1e-4) / 448,
 * elements are rounded to nearest even. A NaN becomes NaN without touching its neighbours; an infinity counts as the
 * largest finite bf16. Fails with WL_INVALID_ARGUMENT.
 * @param device Whose kernels do it.
 * @param x The rows; unchanged.
 * @param options Where to write.
 */
export function quantizeRows(device: CpuDevice, x: Tensor<'bf16'>, options: QuantizeOptions = {}): ScaledRows {
  requireCpu(device);
  requireTensor('x', x, 'bf16');
  checkOptions(options, quantizeNames, 'options of quantizeRows');
  requireFlag('roundScale', options.roundScale);
  const [rows, columns] = matrix('x', x.shape);
  const groups = Math.ceil(columns / FP8_GROUP);
  if (options.out !== undefined) {
    requireScaledRows('out.', options.out);
    expectShape('out.data', options.out.data.shape, [rows, columns]);
    expectShape('out.scales', options.out.scales.shape, [rows, groups]);
  }
  const out = options.out ?? {
    data: device.empty('fp8e4m3', [rows, columns]),
    scales: device.empty('f32', [rows, groups]),
  };
  const { data, scales } = out;
  device.kernels.quantizeFp8(data.address, scales.address, x.address, rows, columns, options.roundScale ? 1 : 0);
  return out;
}

/**
 * x = bf16(data * scale) into `out` (bf16 [T, H]), by default a new tensor that the caller closes.
 * @param device Whose kernels do it.
 * @param rows fp8 data and their scales.
 * @param out Where to write.
 */
export function dequantizeRows(device: CpuDevice, rows: ScaledRows, out?: Tensor<'bf16'>): Tensor<'bf16'> {
  requireCpu(device);
  requireScaledRows('', rows);
  if (out !== undefined) requireTensor('out', out, 'bf16');
  const { data, scales } = rows;
  const [count, columns] = matrix('data', data.shape);
  expectShape('scales', scales.shape, [count, Math.ceil(columns / FP8_GROUP)]);
  if (out !== undefined) expectShape('out', out.shape, [count, columns]);
  const x = out ?? device.empty('bf16', [count, columns]);
  device.kernels.dequantizeFp8(x.address, data.address, scales.address, count, columns);
  return x;
}

function requireCpu(device: unknown): void {
  const isCpu = typeof device === 'object' && device !== null && 'kind' in device && device.kind === 'cpu';
  if (!isCpu) throw invalidArgument('device', device, 'a CpuDevice');
}

function requireScaledRows(prefix: string, rows: unknown): void {
  const { data, scales }: Partial<ScaledRows> = typeof rows === 'object' && rows !== null ? rows : {};
  requireTensor(`${prefix}data`, data, 'fp8e4m3');
  requireTensor(`${prefix}scales`, scales, 'f32');
}

function requireTensor(name: string, tensor: unknown, dtype: DType): void {
  const expected = `a ${dtype} tensor`;
  if (!(tensor instanceof Tensor)) throw invalidArgument(name, tensor, expected);
  if (tensor.storage.disposed) throw invalidArgument(name, 'a closed tensor', expected);
  if (tensor.dtype !== dtype) throw invalidArgument(name, `a ${tensor.dtype} tensor`, expected);
}

function matrix(argument: string, shape: readonly number[]): [rows: number, columns: number] {
  const [rows, columns] = shape;
  if (shape.length !== 2 || rows === undefined || columns === undefined || columns % 8 !== 0) {
    throw invalidArgument(`${argument}.shape`, shape, '[T, H] with H a multiple of 8');
  }
  return [rows, columns];
}

function expectShape(argument: string, shape: readonly number[], expected: readonly number[]): void {
  if (shape.length !== expected.length || shape.some((extent, index) => extent !== expected[index])) {
    throw invalidArgument(`${argument}.shape`, shape, `[${expected.join(', ')}]`);
  }
}
