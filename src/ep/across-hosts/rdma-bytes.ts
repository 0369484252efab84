// A network side within the bytes that the caller gives it, or in memory that the caller made.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { formatBytes } from '../../core/byte-size.ts';
import type { Device } from '../../device/device.ts';
import type { Tensor } from '../../device/tensor.ts';
import { REGION_ALIGNMENT } from '../../abi/exchange-record.ts';
import { checkTensor } from '../../group/tensor-check.ts';
import { type NetworkShape, networkSize } from './network-size.ts';

/**
 * The shape with room for as many sums as fit. All tokens for 0 bytes. Fails with WL_INVALID_ARGUMENT if what every token
 * needs does not fit.
 */
export function withinRdmaBytes(shape: NetworkShape, numRdmaBytes: number): NetworkShape {
  if (numRdmaBytes === 0) return shape;
  const { maxTokensPerRank } = shape;
  let [fits, tooMany] = [0, maxTokensPerRank + 1];
  while (tooMany - fits > 1) {
    const sumTokens = Math.floor((fits + tooMany) / 2);
    if (networkSize({ ...shape, sumTokens }).bytes <= numRdmaBytes) fits = sumTokens;
    else tooMany = sumTokens;
  }
  if (fits > 0) return { ...shape, sumTokens: fits };
  const least = networkSize({ ...shape, sumTokens: 1 }).bytes;
  const allowed = `0, or at least ${least} (${formatBytes(least)}) for ${maxTokensPerRank} tokens per rank over ${shape.hosts.length} hosts`;
  throw invalidArgument('numRdmaBytes', numRdmaBytes, allowed);
}

/** The network side of a GPU is one region of its carrier, which is one view of memory. */
const MAX_PINNED_BYTES = 2 ** 32 - 65_536;

/**
 * The same of GPUs, whose network side holds every row of a call, so it cannot be smaller. Fails with WL_INVALID_ARGUMENT, or
 * with WL_UNSUPPORTED if it is larger than memory for a carrier can be.
 */
export function requirePinnedBytes(bytes: number, numRdmaBytes: number): void {
  if (bytes > MAX_PINNED_BYTES) {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `The network side of each GPU would take ${bytes} bytes (${formatBytes(bytes)}) of pinned memory, at most ${MAX_PINNED_BYTES} (${formatBytes(MAX_PINNED_BYTES)}) are supported: use fewer tokens per rank, a group of fewer hosts, or combinePrecision "bf16"`,
      { details: { bytes, most: MAX_PINNED_BYTES } },
    );
  }
  if (numRdmaBytes === 0 || bytes <= numRdmaBytes) return;
  const allowed = `0, or at least the ${bytes} (${formatBytes(bytes)}) of pinned memory that GPUs take with this configuration`;
  throw invalidArgument('numRdmaBytes', numRdmaBytes, allowed);
}

/** GPUs map pinned memory that the library makes. Fails with WL_INVALID_ARGUMENT if the caller passes some. */
export function refuseRdmaBuffer(value: unknown): void {
  if (value === undefined) return;
  throw invalidArgument('rdmaBuffer', value, 'none on a GPU, whose network side is pinned memory of the library');
}

/** Fails with WL_INVALID_ARGUMENT for anything but memory of the device that holds so many bytes. */
export function checkRdmaBuffer(value: unknown, { device, bytes }: { device: Device; bytes: number }): Tensor<'u8'> {
  const tensor = checkTensor('rdmaBuffer', value, { device, dtype: ['u8'], shape: ['bytes'] });
  const aligned = tensor.address % REGION_ALIGNMENT === 0;
  if (tensor.bytes >= bytes && aligned) return tensor;
  const allowed = `at least ${bytes} bytes (${formatBytes(bytes)}) from a multiple of ${REGION_ALIGNMENT} on, or numRdmaBytes that it can hold`;
  throw invalidArgument('rdmaBuffer', `${tensor.bytes} bytes from ${tensor.address} on`, allowed);
}
