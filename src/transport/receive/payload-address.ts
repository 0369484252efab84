// Where the payload of a packet belongs of which only the header has been read: the kernel can then put it there at once.
// Hot path: no allocation. Changes nothing: the packet is taken in, and counted, once it has been received.
import { DATA_HEADER_BYTES, dataHeader, packetFlags } from '../../abi/transport-packet.ts';
import type { Connection } from '../engine/connection.ts';
import type { Region } from '../engine/region.ts';

const DATA = dataHeader.offset;
const TWO_32 = 2 ** 32;
/** Packets with any other flag are taken in from the receive arena. */
const PLAIN_FLAGS = packetFlags.checksum | packetFlags.ackNow | packetFlags.region;

/**
 * The native address for the payload of the data packet whose authenticated header is at `at`, all bounds checked; 0 if it
 * belongs nowhere, has come before, or must be looked at first.
 */
export function payloadAddress(connection: Connection, view: DataView, at: number): number {
  const { window } = connection.receive;
  const flags = view.getUint16(at + DATA.flags, true);
  const sequence = view.getInt32(at + DATA.sequence, true);
  if ((flags & ~PLAIN_FLAGS) !== 0 || window.isTooFar(sequence) || window.has(sequence)) return 0;
  const bytes = view.getUint16(at + DATA.length, true);
  const offset = view.getUint32(at + DATA.offset, true) + view.getUint8(at + DATA.offsetHigh) * TWO_32;
  const messageBytes =
    view.getUint32(at + DATA.messageBytes, true) + view.getUint8(at + DATA.messageBytesHigh) * TWO_32;
  const base = view.getUint32(at + DATA.base, true) + view.getUint16(at + DATA.baseHigh, true) * TWO_32;
  if (offset + bytes > messageBytes) return 0;
  const target = view.getUint32(at + DATA.target, true);
  if ((flags & packetFlags.region) === 0) return inRequest(connection, target, { bytes, offset, messageBytes, base });
  const region = connection.engine.regions.find(target);
  const isRefused =
    region === undefined ||
    region.key !== view.getUint32(at + DATA.targetKey, true) ||
    !region.remote.write ||
    base + messageBytes > region.bytes.byteLength;
  return isRefused ? 0 : addressIn(region, base + offset);
}

interface Place {
  readonly bytes: number;
  readonly offset: number;
  readonly messageBytes: number;
  readonly base: number;
}

function inRequest(connection: Connection, target: number, { bytes, offset, messageBytes, base }: Place): number {
  const request = connection.engine.requests.find(target);
  if (request === undefined || !request.isPending || request.owner !== connection) return 0;
  if (base + messageBytes > request.bytes) return 0;
  if (request.messageBytes !== -1 && request.messageBytes !== messageBytes) return 0;
  if (request.kind === 'receive') {
    if (offset + bytes > request.granted || (request.base >= 0 && request.base !== base)) return 0;
  } else if (request.kind !== 'read' || base !== 0) {
    return 0;
  }
  return addressIn(request.region as Region, request.offset + base + offset);
}

function addressIn(region: Region, offset: number): number {
  return region.address === 0 ? 0 : region.address + offset;
}

/** Bytes of a packet that must be read to ask for the address of its payload. */
export const PEEKED_BYTES: number = DATA_HEADER_BYTES;
