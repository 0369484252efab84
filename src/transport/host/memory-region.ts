// Memory that the transport may send from and receive into: what is accepted, its address, its name for peers.
import { checkOptions, type OptionNames, requireFlag } from '../../core/check-options.ts';
import { invalidArgument } from '../../core/errors.ts';
import { formatBytes } from '../../core/byte-size.ts';
import { Tensor } from '../../device/tensor.ts';
import { addressOf } from '../../native/library.ts';
import type { RemoteAccess } from '../engine/region.ts';
import type { RegionName } from '../engine/transport-engine.ts';

/** Host memory; a tensor must be the CPU device's. */
export type RegisteredMemory = Uint8Array | Tensor;

/** A view of more aborts Node 20. */
const MAX_REGION_BYTES = 2 ** 32 - 65_536;

/** Registered memory. It must stay allocated until it is released. */
export interface MemoryRegion {
  readonly bytes: Uint8Array;
  /** What a peer gives to read or write the region, if it was registered for that. */
  readonly remote: { readonly remoteRegion: number; readonly remoteKey: number };
  /** Of the engine. */
  readonly number: number;
}

export function memoryRegion(bytes: Uint8Array, { id, key }: RegionName): MemoryRegion {
  return Object.freeze({ bytes, number: id, remote: Object.freeze({ remoteRegion: id, remoteKey: key }) });
}

const accessNames: OptionNames<RemoteAccess> = { read: true, write: true };

function checkAccess(remote: Partial<RemoteAccess>): void {
  checkOptions(remote, accessNames, 'remote access of register');
  requireFlag('read', remote.read);
  requireFlag('write', remote.write);
}

/** The bytes, at an address that does not change while the array lives. Fails with WL_INVALID_ARGUMENT, also for `remote`. */
export function fixedBytes(
  memory: RegisteredMemory,
  remote: Partial<RemoteAccess>,
): { readonly bytes: Uint8Array; readonly address: number } {
  checkAccess(remote);
  const given = memory instanceof Tensor ? memory.view() : memory;
  if (!ArrayBuffer.isView(given)) throw invalidArgument('memory', memory, 'a Uint8Array or a tensor of the CPU device');
  if (given.byteLength === 0 || given.byteLength > MAX_REGION_BYTES) {
    throw invalidArgument('memory of a region', given.byteLength, `1 byte to ${formatBytes(MAX_REGION_BYTES)}`);
  }
  // Asking for `buffer` takes a small array out of the heap, in which it might be moved.
  const bytes = new Uint8Array(given.buffer, given.byteOffset, given.byteLength);
  return { bytes, address: Number(addressOf(bytes)) };
}

/** Fails with WL_INVALID_ARGUMENT for what no register() returned. */
export function regionNumber(region: unknown): number {
  const { number }: Partial<MemoryRegion> = typeof region === 'object' && region !== null ? region : {};
  if (typeof number === 'number') return number;
  throw invalidArgument('region', region, 'what register() returned');
}
