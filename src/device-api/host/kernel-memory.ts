// The memory that kernels of a DeviceHost and its peers reach: made and registered, read, written, described, given up.
import { hostIdentity } from '../../world/host-identity.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { Tensor } from '../../device/tensor.ts';
import type { ProxyService } from '../service/proxy-service.ts';
import type { DeviceSide } from './device-side.ts';
import { type DescRange, encodeDescs } from './transfer-descs.ts';
import { checkBytes, type RegisteredVram, type VramRange, VramRegions } from './vram-regions.ts';
import type { WriteRequests } from './write-requests.ts';

interface Parts {
  /** By the number of their device. */
  readonly sides: ReadonlyMap<number, DeviceSide>;
  readonly service: ProxyService;
  readonly requests: WriteRequests;
}

/** The calls of DeviceHost with the same names say what each does. */
export class KernelMemory {
  readonly #parts: Parts;
  readonly #regions = new VramRegions();
  /** By number of the region. */
  readonly #tensors = new Map<number, Tensor>();

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** Of the device, the first by default. Fails with WL_INVALID_ARGUMENT. */
  side(deviceId?: number): DeviceSide {
    const { sides } = this.#parts;
    const [first] = sides.keys();
    const side = sides.get(deviceId ?? first!);
    if (side === undefined) throw invalidArgument('deviceId', deviceId, `one of ${[...sides.keys()].join(', ')}`);
    return side;
  }

  /** Fails with WL_INVALID_ARGUMENT unless it is inside of registered memory. */
  range(range: VramRange): Required<VramRange> {
    return this.#regions.range(range);
  }

  async allocate(bytes: number, deviceId?: number): Promise<RegisteredVram> {
    checkBytes(bytes);
    const side = this.side(deviceId);
    const { address, id } = await side.allocate(bytes);
    if (id !== undefined) return this.#regions.add({ id, address, bytes, deviceId: side.deviceId });
    try {
      return await this.register(address, bytes, deviceId);
    } catch (error) {
      side.release(address);
      throw error;
    }
  }

  async allocateHost(bytes: number, deviceId?: number): Promise<RegisteredVram> {
    checkBytes(bytes);
    const side = this.side(deviceId);
    const { id, address } = await this.#parts.service.allocate(bytes);
    return this.#regions.add({ id, address: side.pin(address, bytes), bytes, deviceId: side.deviceId });
  }

  async register(memory: Tensor | number, bytes?: number, deviceId?: number): Promise<RegisteredVram> {
    const side = this.side(deviceId);
    const size = bytes ?? (memory instanceof Tensor ? memory.bytes : bytes);
    checkBytes(size as number);
    const address = addressIn(side, memory, size as number);
    const id = await this.#parts.service.register({ address, bytes: size as number, ordinal: side.ordinal });
    const region = this.#regions.add({ id, address, bytes: size as number, deviceId: side.deviceId });
    // Until it is deregistered the tensor's memory is not given to others.
    if (memory instanceof Tensor) this.#tensors.set(id, memory);
    return region;
  }

  async deregister(memory: RegisteredVram): Promise<void> {
    const known = this.#regions.known(memory);
    const { requests, service } = this.#parts;
    requests.checkUnused('memory', (open) => open.memory === known);
    const side = this.side(known.deviceId);
    // What is pinned belongs to the agent, which frees it next; memory of a GPU is freed when peers are out of it.
    if (!side.isFar(known.address)) side.release(known.address);
    await service.deregister(known.id);
    this.#regions.remove(known);
    this.#tensors.delete(known.id);
    side.release(known.address);
  }

  view(memory: RegisteredVram): Uint8Array {
    const known = this.#regions.known(memory);
    return this.side(known.deviceId).view(known);
  }

  async read(memory: RegisteredVram, bytes?: number): Promise<Uint8Array> {
    const range = this.#regions.range(bytes === undefined ? { memory } : { memory, bytes });
    return this.side(range.memory.deviceId).read({ address: range.memory.address, bytes: range.bytes });
  }

  async write(memory: RegisteredVram, values: Uint8Array): Promise<void> {
    if (!(values instanceof Uint8Array)) throw invalidArgument('values', values, 'a Uint8Array');
    const { memory: known } = this.#regions.range({ memory, bytes: values.length });
    await this.side(known.deviceId).write(known.address, values);
  }

  /** What peers need to write to the ranges; `agent` is this host's name. */
  describe(agent: string, ranges: readonly VramRange[]): Uint8Array {
    const described = ranges.map((range) => this.#describeRange(range));
    return encodeDescs({ agent, host: hostIdentity(), process: process.pid, ranges: described });
  }

  #describeRange(range: VramRange): DescRange {
    const { memory, offset, bytes } = this.#regions.range(range);
    const ipc = this.side(memory.deviceId).exportMemory(memory.address + offset, bytes);
    return { region: memory.id, offset, bytes, ...(ipc === undefined ? {} : { ipc }) };
  }
}

/** Where the memory is, as kernels of the device see it. Fails with WL_INVALID_ARGUMENT for what is not there. */
function addressIn(side: DeviceSide, memory: Tensor | number, bytes: number): number {
  if (memory instanceof Tensor) {
    if (memory.storage.disposed) throw invalidArgument('memory', 'a disposed tensor', 'a live one');
    if (bytes > memory.bytes) throw invalidArgument('bytes', bytes, `at most ${memory.bytes}, those of the tensor`);
    return side.addressOf(memory);
  }
  // An invalid address in a native call would end the process.
  if (!Number.isSafeInteger(memory) || memory <= 0) {
    throw invalidArgument('address', memory, 'a tensor, or an address of memory');
  }
  if (side.owns(memory, bytes)) return memory;
  const [where, advice] =
    side.ordinal === undefined
      ? ['this process', "a CPU tensor's address is an offset in WebAssembly memory: pass the tensor itself"]
      : ['the GPU', 'pass a tensor of the GPU, or an address in its memory'];
  const what = `${memory} is no address of ${bytes} readable and writable bytes of ${where}`;
  throw new WeftlineError('WL_INVALID_ARGUMENT', `Invalid memory: ${what}; ${advice}`, {
    details: { argument: 'memory', value: memory, bytes },
  });
}
