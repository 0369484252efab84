// Checks what users pass to connections; nothing has happened when one fails.
import { MAX_FLOWS, MAX_MESSAGE_BYTES, MAX_PATHS, SCATTER_ENTRY_BYTES } from '../../abi/transport-packet.ts';
import { invalidArgument } from '../../core/errors.ts';
import { PACKET_KEY_BYTES, type PacketKeys } from '../authentication/packet-keys.ts';
import { MAX_RANGES, RANGE_SPAN } from '../send/range-list.ts';
import type { RegionTable } from './region-table.ts';
import type { ConnectionOptions, LocalRange, RemoteRange, ScatterOptions, SignalOptions } from './transport-engine.ts';

const MAX_SEGMENT_BYTES = 65_472;

export function checkConnection(options: ConnectionOptions): void {
  const { paths, rails = 1, segmentBytes, secret, packetKeys, localId, remoteId, peerName } = options;
  whole('paths', paths, 1, MAX_PATHS);
  whole('rails', rails, 1, paths);
  whole('segmentBytes', segmentBytes, 512, MAX_SEGMENT_BYTES);
  if (segmentBytes % 8 !== 0) throw invalidArgument('segmentBytes', segmentBytes, 'a multiple of 8');
  whole('localId', localId, 0, 0xffff_ffff);
  whole('remoteId', remoteId, 0, 0xffff_ffff);
  if (typeof secret !== 'bigint') throw invalidArgument('secret', secret, 'a bigint of 64 bits');
  if (packetKeys !== undefined) checkKeys(packetKeys);
  if (typeof peerName !== 'string') throw invalidArgument('peerName', peerName, 'a string');
}

function checkKeys({ outgoing, incoming }: PacketKeys): void {
  for (const [name, key] of Object.entries({ outgoing, incoming })) {
    if (key instanceof Uint8Array && key.byteLength === PACKET_KEY_BYTES) continue;
    // Not the key itself: errors are printed.
    const found = key instanceof Uint8Array ? `${key.byteLength} bytes` : typeof key;
    throw invalidArgument(`packetKeys.${name}`, found, `${PACKET_KEY_BYTES} bytes`);
  }
  // With one key for both directions, a packet could be sent back to its sender.
  if (Buffer.compare(outgoing, incoming) !== 0) return;
  throw invalidArgument('packetKeys', 'the same key twice', 'a key for each direction');
}

export function checkFlow(flow: number): void {
  whole('flow', flow, 0, MAX_FLOWS - 1);
}

export function checkLocal(regions: RegionTable, { region, offset, bytes }: LocalRange): void {
  if (!regions.isRegistered(region)) throw invalidArgument('region', region, 'a region registered with this engine');
  whole('offset', offset, 0, region.bytes.byteLength);
  whole('bytes', bytes, 0, Math.min(MAX_MESSAGE_BYTES, region.bytes.byteLength - offset));
}

export function checkRemote({ remoteRegion, remoteKey, remoteOffset }: RemoteRange): void {
  whole('remoteRegion', remoteRegion, 0, 0xffff_ffff);
  whole('remoteKey', remoteKey, 0, 0xffff_ffff);
  whole('remoteOffset', remoteOffset, 0, 2 ** 48 - 1);
}

export function checkScatter(regions: RegionTable, options: ScatterOptions): void {
  const { region, ranges, remoteRegion, remoteKey } = options;
  checkRemote({ remoteRegion, remoteKey, remoteOffset: 0 });
  if (!regions.isRegistered(region)) throw invalidArgument('region', region, 'a region registered with this engine');
  whole('ranges.sourceEnd', ranges.sourceEnd, 0, region.bytes.byteLength);
  whole('ranges.longest', ranges.longest, 0, RANGE_SPAN - 1);
  whole('ranges.end', ranges.end, 0, MAX_RANGES);
}

/** Of prepared transfers, by `payloadBytes` of a full packet: longer ranges are worth requests of their own. */
export function longestScattered(payloadBytes: number): number {
  return Math.floor(payloadBytes / 2) - SCATTER_ENTRY_BYTES;
}

export function checkSignal(options: SignalOptions): void {
  checkRemote(options);
  whole('add', options.add, 0, Number.MAX_SAFE_INTEGER);
  if (options.remoteOffset % 8 !== 0) throw invalidArgument('remoteOffset', options.remoteOffset, 'a multiple of 8');
}

function whole(name: string, value: number, least: number, most: number): void {
  if (Number.isSafeInteger(value) && value >= least && value <= most) return;
  throw invalidArgument(name, value, `a whole number from ${least} to ${most}`);
}
