// Memory that the transport may send from and receive into: what is accepted, its address, its name for peers.
import { formatBytes } from '../../core/byte-size.ts';
import { checkOptions, type OptionNames, requireFlag } from '../../core/check-options.ts';
import { invalidArgument } from '../../core/errors.ts';
import { Tensor } from '../../device/tensor.ts';
import { addressOf } from '../../native/library.ts';
import type { RemoteAccess, RegionName } from '../engine/region.ts';

/** Host memory; a tensor must be the CPU device's. */
export type RegisteredMemory = Uint8Array | Tensor;

/** A view of more aborts Node 20. */
const MAX_REGION_BYTES = 2 ** 32 - 65_536;

/** Registered memory. It must stay allocated until it is closed. */
export interface MemoryRegion extends AsyncDisposable {
  readonly bytes: Uint8Array;
  /** What a peer gives to read or write the region, if it was registered for that. */
  readonly remote: { readonly remoteRegion: number; readonly remoteKey: number };
  /** Number of the region in the engine. */
  readonly number: number;
  /**
   * The memory is the caller's again; pending requests that use it fail with WL_CLOSED. It fails if an engine does not
   * answer, when all others have given the memory back, and may be called again.
   */
  close(): Promise<void>;
}

export function memoryRegion(bytes: Uint8Array, { id, key }: RegionName, close: () => Promise<void>): MemoryRegion {
  const remote = Object.freeze({ remoteRegion: id, remoteKey: key });
  return Object.freeze({ bytes, number: id, remote, close, [Symbol.asyncDispose]: close });
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
  return placedBytes(given);
}

/** Where the bytes of an array lie. Fails with WL_INVALID_ARGUMENT for those of a buffer that may shrink under whoever moves them. */
export function placedBytes(given: ArrayBufferView): { readonly bytes: Uint8Array; readonly address: number } {
  // Asking for `buffer` takes a small array out of the heap, in which it might be moved.
  const { buffer } = given as { readonly buffer: ArrayBufferLike & { readonly resizable?: boolean } };
  if (buffer.resizable === true) throw invalidArgument('memory', given, 'an array whose buffer is not resizable');
  const bytes = new Uint8Array(buffer, given.byteOffset, given.byteLength);
  return { bytes, address: Number(addressOf(bytes)) };
}

/** Part of a region of this side; all of it by default. */
export interface LocalPart {
  readonly region: MemoryRegion;
  readonly offset?: number;
  readonly bytes?: number;
  /** Messages of a flow meet receives of the same flow in the order of posting; 0 by default, at most 65535. */
  readonly flow?: number;
}

/** The target of a one-sided operation: `region.remote` of the peer, and an offset in it. */
export interface RemotePart {
  readonly remoteRegion: number;
  readonly remoteKey: number;
  /** 0 by default. */
  readonly remoteOffset?: number;
}

/** The counter of the peer that a signal adds to, and how much. */
export interface SignalPart extends RemotePart {
  readonly flow?: number;
  /** Added to the 64-bit cell at `remoteOffset`, a multiple of 8. */
  readonly add: number;
}
