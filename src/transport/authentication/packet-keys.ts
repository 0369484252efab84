// The keys of a connection's packets: one per direction, so that a packet sent back to its sender is refused.
import { hkdfSync } from 'node:crypto';
import { packetKey } from '../../abi/packet-key.ts';

/** Bytes of a session key and of the key of a direction. */
export const PACKET_KEY_BYTES = 32;

/** What one end holds; the other end holds the same two keys the other way round. */
export interface PacketKeys {
  readonly outgoing: Uint8Array;
  readonly incoming: Uint8Array;
}

/** The keys of one end, from the secret that both ends agreed on for this connection alone. */
export function splitSessionKey(session: Uint8Array, end: 'caller' | 'listener'): PacketKeys {
  const fromCaller = derive(session, 'packets of the caller', PACKET_KEY_BYTES);
  const fromListener = derive(session, 'packets of the listener', PACKET_KEY_BYTES);
  return end === 'caller'
    ? { outgoing: fromCaller, incoming: fromListener }
    : { outgoing: fromListener, incoming: fromCaller };
}

/** What the kernel that tags packets reads: packetKey. */
export function expandPacketKey(key: Uint8Array): Uint8Array {
  return derive(key, 'packet tag', packetKey.size);
}

function derive(key: Uint8Array, purpose: string, bytes: number): Uint8Array {
  return new Uint8Array(hkdfSync('sha256', key, '', `weftline transport ${purpose}`, bytes));
}
