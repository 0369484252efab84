// The bytes that the backend ucx puts into the agent's metadata: where to meet it, and the names of its regions.
import { UCX_PROTOCOL_VERSION } from '../../../abi/ucx-message.ts';

export interface UcxAddress {
  readonly host: string;
  readonly port: number;
}

/** Version, port, then the host's numeric address as text. */
export function encodeUcxAddress({ host, port }: UcxAddress): Uint8Array {
  const prefix = Buffer.alloc(4);
  prefix.writeUInt16LE(UCX_PROTOCOL_VERSION, 0);
  prefix.writeUInt16LE(port, 2);
  return Buffer.concat([prefix, Buffer.from(host)]);
}

/** undefined if it is not understood. */
export function decodeUcxAddress(info: Uint8Array): UcxAddress | undefined {
  const bytes = Buffer.from(info.buffer, info.byteOffset, info.byteLength);
  if (bytes.length < 5 || bytes.readUInt16LE(0) !== UCX_PROTOCOL_VERSION) return undefined;
  const host = bytes.toString('utf8', 4);
  return /^[0-9a-fA-F.:]{2,45}$/.test(host) ? { host, port: bytes.readUInt16LE(2) } : undefined;
}

export interface UcxRegionName {
  readonly number: number;
  readonly key: number;
  /** Native, of the first byte, and UCX's key of the memory: empty where it is used by messages only. */
  readonly address: number;
  readonly packed: Uint8Array;
}

const HEAD_BYTES = 16;
const MAX_PACKED_BYTES = 512;
const TWO_32 = 2 ** 32;

export function encodeUcxRegion({ number, key, address, packed }: UcxRegionName): Uint8Array {
  const bytes = Buffer.alloc(HEAD_BYTES);
  bytes.writeUInt32LE(number, 0);
  bytes.writeUInt32LE(key, 4);
  bytes.writeUInt32LE(address % TWO_32, 8);
  bytes.writeUInt32LE(Math.floor(address / TWO_32), 12);
  return Buffer.concat([bytes, packed]);
}

/** undefined if it is not understood. */
export function decodeUcxRegion(info: Uint8Array): UcxRegionName | undefined {
  if (info.byteLength < HEAD_BYTES || info.byteLength > HEAD_BYTES + MAX_PACKED_BYTES) return undefined;
  const bytes = Buffer.from(info.buffer, info.byteOffset, info.byteLength);
  const address = bytes.readUInt32LE(8) + bytes.readUInt32LE(12) * TWO_32;
  const packed = new Uint8Array(info.subarray(HEAD_BYTES));
  return { number: bytes.readUInt32LE(0), key: bytes.readUInt32LE(4), address, packed };
}
