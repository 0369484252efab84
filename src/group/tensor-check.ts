// Checks of tensors that a caller passes: on which device, of which dtype, of which shape, before any byte moves.
import { type DType, dtypes } from '../core/dtype.ts';
import { invalidArgument } from '../core/errors.ts';
import type { Device } from '../device/device.ts';
import { Tensor } from '../device/tensor.ts';
import type { RankGroup } from '../world/rank-group.ts';

/** A shape in which a string names an extent that may be anything. */
type ShapePattern = readonly (number | string)[];

interface TensorRule<D extends DType> {
  readonly device: Device;
  readonly dtype: readonly D[];
  readonly shape: ShapePattern;
  /** Bytes that a GPU's kernels take at once; the address must be a multiple. On other devices any address will do. */
  readonly alignment?: number;
}

/** Fails with WL_INVALID_ARGUMENT for anything but a device that collective objects run on. */
export function requireDevice(device: unknown): void {
  const kind = typeof device === 'object' && device !== null && 'kind' in device ? device.kind : undefined;
  if (kind === 'cpu' || kind === 'cuda') return;
  throw invalidArgument('device', device, 'a CpuDevice or CudaDevice, as openDevice() returns');
}

/** Fails with WL_INVALID_ARGUMENT for anything but ranks that can take a collective object's calls together. */
export function requireGroup(group: unknown): void {
  const { ranks, allGather, settings }: Partial<RankGroup> = typeof group === 'object' && group !== null ? group : {};
  if (Array.isArray(ranks) && typeof allGather === 'function' && typeof settings === 'object') return;
  throw invalidArgument('group', group, 'a world, as join() returns, or a group of its ranks');
}

/** Alignment of rows that kernels of a GPU move; those of fp8 may be shorter than a multiple of what the copy engine takes. */
export function rowAlignment(rowBytes: number): number {
  return rowBytes % 16 === 0 ? 16 : 8;
}

/** Returns the tensor under its checked type, or fails with WL_INVALID_ARGUMENT naming what was got and allowed. */
export function checkTensor<D extends DType>(name: string, value: unknown, rule: TensorRule<D>): Tensor<D> {
  const wrong = whatIsWrong(value, rule);
  if (wrong !== undefined) throw invalidArgument(name, wrong.got, wrong.allowed ?? allowedBy(rule));
  return value as Tensor<D>;
}

/** Hot path: no text is made of a tensor that is right. `allowed`: in place of what the rule allows. */
function whatIsWrong<D extends DType>(
  value: unknown,
  rule: TensorRule<D>,
): { readonly got: unknown; readonly allowed?: string } | undefined {
  if (!(value instanceof Tensor)) return { got: value };
  if (value.storage.disposed) return { got: 'a closed tensor' };
  const { device } = rule;
  if (value.device !== device) return { got: `a tensor of another ${value.device.kind} device` };
  const dtypeFits = (rule.dtype as readonly DType[]).includes(value.dtype);
  if (!dtypeFits || !fitsShape(value.shape, rule.shape)) return { got: `${value.dtype} [${value.shape.join(', ')}]` };
  if (device.kind !== 'cuda') return undefined;
  const { alignment = dtypes[value.dtype as DType].bytes } = rule;
  if (value.address % alignment === 0) return undefined;
  const place = `that begins at a multiple of ${alignment} bytes, as what device.empty gives does`;
  return {
    got: `a view that begins at byte ${value.address - value.storage.address}`,
    allowed: `${allowedBy(rule)} ${place}`,
  };
}

function fitsShape(shape: readonly number[], pattern: ShapePattern): boolean {
  if (shape.length !== pattern.length) return false;
  for (let axis = 0; axis < pattern.length; axis++) {
    const extent = pattern[axis]!;
    if (typeof extent !== 'string' && extent !== shape[axis]) return false;
  }
  return true;
}

function allowedBy<D extends DType>({ dtype, shape, device }: TensorRule<D>): string {
  return `a ${dtype.join(' or ')} tensor [${shape.join(', ')}] on this ${device.kind} device`;
}

/**
 * Checks the tensors among a call's arguments in a later part of the call: memory of one that was closed meanwhile may be
 * another's by now. Fails with WL_INVALID_ARGUMENT. `until`: when the call is done with them.
 */
export function requireLive(args: object, until: string): void {
  for (const [name, value] of Object.entries(args) as [string, unknown][]) {
    if (!(value instanceof Tensor) || !value.storage.disposed) continue;
    throw invalidArgument(name, 'a closed tensor', `one that lives until ${until}`);
  }
}

/** True when two runs of bytes of one device share any. */
export function overlaps(tensor: Tensor, address: number, bytes: number): boolean {
  return tensor.bytes > 0 && tensor.address < address + bytes && address < tensor.address + tensor.bytes;
}
