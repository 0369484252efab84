// Memory regions: memory that a device may read and write, pinned until the region is closed.
import { Block } from '../../abi/layout.ts';
import { accessFlag, ibvMr } from './c-structs.ts';
import { formatBytes } from '../../core/byte-size.ts';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import { localFiles } from '../file-probe.ts';
import { nativeError, viewAt } from '../library.ts';
import { refusalOf } from './facts.ts';
import type { ProtectionDomain } from './context.ts';

const EOPNOTSUPP = 95;
const EINVAL = 22;
const ENOTTY = 25;
const EPROTONOSUPPORT = 93;
const NO_DESCRIPTOR = -1;
const unsupported: readonly number[] = [EOPNOTSUPP, ENOTTY, EPROTONOSUPPORT];

/** What peers may do with a region. Its own process may always do all. */
export interface RegionAccess {
  readonly remoteWrite?: boolean;
  readonly remoteRead?: boolean;
  readonly remoteAtomic?: boolean;
  /** Writes of a device may pass each other on the PCI bus. Devices without it ignore it. */
  readonly relaxedOrdering?: boolean;
}

/** Memory of a GPU or another device, exported as a file descriptor (dmabuf). */
interface DmabufMemory {
  readonly descriptor: number;
  /** Offset at which the memory begins in the file. */
  readonly offset: number;
  readonly bytes: number;
  /** The address by which peers name its first byte. */
  readonly address: number;
}

export class MemoryRegion implements Disposable {
  /** Key by which requests of this process name it. */
  readonly localKey: number;
  /** Key by which requests of peers name it. */
  readonly remoteKey: number;
  readonly #domain: ProtectionDomain;
  readonly #handle: number;
  #isClosed = false;

  private constructor(domain: ProtectionDomain, handle: number) {
    this.#domain = domain;
    this.#handle = handle;
    const fields = new Block(ibvMr, viewAt(handle, ibvMr.size), 0);
    this.localKey = fields.get('localKey');
    this.remoteKey = fields.get('remoteKey');
    domain.context.counts.regions += 1;
    domain.context.adopt(this);
  }

  /**
   * Memory of this process. It must not move or be unmapped before close().
   * Fails with WL_CAPACITY where a limit is reached, and says which.
   */
  static host(domain: ProtectionDomain, address: number, bytes: number, access: RegionAccess = {}): MemoryRegion {
    const { calls } = prepare(domain, bytes);
    const flags = flagsOf(access);
    // The old call refuses optional flags; the new one drops those that the driver does not know.
    const handle =
      access.relaxedOrdering === true
        ? calls.ibv_reg_mr_iova2(domain.address, address, bytes, address, flags)
        : calls.ibv_reg_mr(domain.address, address, bytes, flags);
    if (handle < 0) throw refused(domain, 'ibv_reg_mr', bytes, handle);
    return new MemoryRegion(domain, handle);
  }

  /** Memory of another device. Fails with WL_UNSUPPORTED where library, kernel or driver cannot register it. */
  static dmabuf(domain: ProtectionDomain, memory: DmabufMemory, access: RegionAccess = {}): MemoryRegion {
    const { bytes, descriptor, offset, address } = memory;
    const { calls, device } = prepare(domain, bytes);
    const call = 'ibv_reg_dmabuf_mr';
    const handle = calls.ibv_reg_dmabuf_mr(domain.address, offset, bytes, address, descriptor, flagsOf(access));
    if (unsupported.includes(-handle)) {
      throw new WeftlineError(
        'WL_UNSUPPORTED',
        `${device} cannot register memory of other devices: its driver or the kernel does not offer ${call}; such memory must travel through memory of the host`,
        { details: { device, call, errno: -handle } },
      );
    }
    if (handle < 0) throw refused(domain, call, bytes, handle);
    return new MemoryRegion(domain, handle);
  }

  /** Unpins the memory. Requests that use it must be done. */
  close(): void {
    if (this.#isClosed) return;
    const { context } = this.#domain;
    const status = context.calls.ibv_dereg_mr(this.#handle);
    if (status !== 0) throw nativeError('ibv_dereg_mr', 'closing a memory region', -status);
    this.#isClosed = true;
    context.counts.regions -= 1;
    context.release(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** Why the device registers no dmabuf, as the end of a sentence; undefined if it does. Registers nothing. */
export function whyNoDmabuf({ context, address }: ProtectionDomain): string | undefined {
  const { calls, device } = context;
  let result: number;
  try {
    // One that knows the call looks for the file of the descriptor, which is none, and says that.
    result = calls.ibv_reg_dmabuf_mr(address, 0, 0, 0, NO_DESCRIPTOR, 0);
  } catch (error) {
    return asWeftlineError(error).message;
  }
  return unsupported.includes(-result) ? `the driver of ${device}, or the kernel, registers no dmabuf` : undefined;
}

function prepare(domain: ProtectionDomain, bytes: number): ProtectionDomain['context'] {
  const { context } = domain;
  context.requireOpen();
  const most = context.attributes.maxMrSize;
  if (bytes <= most) return context;
  throw new WeftlineError(
    'WL_CAPACITY',
    `${context.device} cannot register ${formatBytes(bytes)} at once: a memory region has at most ${formatBytes(most)} (max_mr_size); register it in parts`,
    { details: { device: context.device, bytes, max_mr_size: most } },
  );
}

function flagsOf({ remoteWrite, remoteRead, remoteAtomic, relaxedOrdering }: RegionAccess): number {
  return (
    accessFlag.localWrite |
    (remoteWrite === true ? accessFlag.remoteWrite : 0) |
    (remoteRead === true ? accessFlag.remoteRead : 0) |
    (remoteAtomic === true ? accessFlag.remoteAtomic : 0) |
    (relaxedOrdering === true ? accessFlag.relaxedOrdering : 0)
  );
}

function refused({ context }: ProtectionDomain, call: string, bytes: number, result: number): WeftlineError {
  const { device, attributes, counts } = context;
  const what = `registering ${formatBytes(bytes)}${result === -EINVAL ? ' (is it memory of this process, and not empty?)' : ''}`;
  const request = { call, what, device, attributes, limit: 'maxMr', held: counts.regions, bytes } as const;
  return refusalOf(request, result, localFiles());
}
