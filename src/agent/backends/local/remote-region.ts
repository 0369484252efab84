// A region of a peer of this host: mapped here, reached through a system call, or memory of a GPU.
import { localRegionInfo, localRegionKinds, MEMORY_HANDLE_BYTES } from '../../../abi/agent-local-info.ts';
import { MAILBOX_REGIONS } from '../../../abi/agent-mailbox.ts';
import { Block } from '../../../abi/layout.ts';
import { copyOf } from '../../../core/bytes.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { MemoryKind } from '../../agent-memory.ts';
import type { BackendRemoteRegion } from '../../backend.ts';
import { grantOf, type RegionGrant } from './region-grants.ts';

/** Where a region's bytes are. */
export type RegionReach =
  /** At a native address of this process. */
  | { readonly kind: 'mapped'; readonly address: number }
  /** At an address of the peer's process. */
  | { readonly kind: 'process'; readonly address: number }
  | {
      readonly kind: 'cuda';
      /** For device.openPeerMemory(). */
      readonly handle: string;
      readonly mappedBytes: number;
      /** From the begin of the allocation. */
      readonly offset: number;
      /** Where the allocation begins in the process that owns it. */
      readonly base: number;
    };

interface RemoteRegionParts {
  readonly bytes: number;
  /** Of the peer's table of regions, and what stands there as long as it is registered. */
  readonly slot: number;
  readonly key: number;
  readonly reach: RegionReach;
}

export class LocalRemoteRegion implements BackendRemoteRegion, RegionGrant {
  readonly bytes: number;
  readonly keyAt: number;
  readonly keyValue: number;
  readonly reach: RegionReach;
  /** The peer has taken it back, or this side gave it up: nothing of it may be touched. */
  isReleased = false;

  constructor({ bytes, slot, key, reach }: RemoteRegionParts) {
    this.bytes = bytes;
    const grant = grantOf({ slot, key });
    this.keyAt = grant.keyAt;
    this.keyValue = grant.keyValue;
    this.reach = reach;
  }
}

/** A memory file of the peer and where the region lies in it. */
export interface SharedPlace {
  readonly fd: number;
  readonly device: number;
  readonly inode: number;
  readonly bytes: number;
  readonly offset: number;
}

/** `map` gives the native address of a region in a file of the peer. Fails with WL_PROTOCOL for what makes no sense. */
export function readRegionInfo(
  bytes: Uint8Array,
  about: { readonly kind: MemoryKind; readonly bytes: number },
  map: (place: SharedPlace) => number,
): LocalRemoteRegion {
  if (bytes.length !== localRegionInfo.size) throw notUnderstood(`it has ${bytes.length} bytes`);
  const copy = copyOf(bytes);
  const info = Block.over(localRegionInfo, copy);
  const kind = info.get('kind');
  const address = info.get('address');
  const regionBytes = info.get('bytes');
  const mappedBytes = info.get('mappedBytes');
  if (regionBytes !== about.bytes) throw notUnderstood(`it speaks of ${regionBytes} bytes instead of ${about.bytes}`);
  if ((kind === localRegionKinds.cuda) !== (about.kind === 'cuda')) throw notUnderstood(`its kind is ${kind}`);
  const slot = info.get('slot');
  if (slot >= MAILBOX_REGIONS) throw notUnderstood(`its slot is ${slot}, expected less than ${MAILBOX_REGIONS}`);
  const parts = { bytes: regionBytes, slot, key: info.get('key') };
  if (kind === localRegionKinds.process) {
    return new LocalRemoteRegion({ ...parts, reach: { kind: 'process', address } });
  }
  if (address + regionBytes > mappedBytes) throw notUnderstood('it ends outside of its allocation');
  if (kind === localRegionKinds.cuda) {
    const { offset } = localRegionInfo;
    const handle = Buffer.from(copy.subarray(offset.handle, offset.handle + MEMORY_HANDLE_BYTES)).toString('base64');
    const reach = { kind: 'cuda', handle, mappedBytes, offset: address, base: info.get('device') } as const;
    return new LocalRemoteRegion({ ...parts, reach });
  }
  if (kind !== localRegionKinds.shared) throw notUnderstood(`its kind is ${kind}`);
  const place = { fd: info.get('fd'), device: info.get('device'), inode: info.get('inode') };
  const mapped = map({ ...place, bytes: mappedBytes, offset: address });
  return new LocalRemoteRegion({ ...parts, reach: { kind: 'mapped', address: mapped } });
}

/** True if bytes that `readRegionInfo` would take speak of memory that only system calls reach. */
export function isOfProcess(bytes: Uint8Array): boolean {
  if (bytes.length !== localRegionInfo.size) return false;
  return Block.over(localRegionInfo, bytes).get('kind') === localRegionKinds.process;
}

export function notUnderstood(why: string): WeftlineError {
  return new WeftlineError('WL_PROTOCOL', `Invalid description of a region of the peer: ${why}`);
}
