// The bytes by which the kernel names an IPv4 or IPv6 address and port.
import { isIPv4, isIPv6 } from 'node:net';
import { invalidArgument } from '../core/errors.ts';

const AF_INET = 2;
const AF_INET6 = 10;

/** struct sockaddr_in and sockaddr_in6: the family is in the machine's order, the port and IPv6 groups in the network's. */
const socketAddressOffset = { family: 0, port: 2, ipv4: 4, ipv6: 8 } as const;
const SOCKADDR_IN_BYTES = 16;
const SOCKADDR_IN6_BYTES = 28;

/** Numeric: names are resolved where they are entered. */
export interface SocketAddress {
  readonly host: string;
  readonly port: number;
}

export function addressFamily(host: string): number {
  if (isIPv4(host)) return AF_INET;
  if (isIPv6(host)) return AF_INET6;
  throw invalidArgument('host', host, 'a numeric IPv4 or IPv6 address');
}

/** struct sockaddr_in or sockaddr_in6. */
export function encodeSocketAddress({ host, port }: SocketAddress): Uint8Array {
  const family = addressFamily(host);
  const bytes = new Uint8Array(family === AF_INET ? SOCKADDR_IN_BYTES : SOCKADDR_IN6_BYTES);
  const view = new DataView(bytes.buffer);
  view.setUint16(socketAddressOffset.family, family, true);
  view.setUint16(socketAddressOffset.port, port, false);
  if (family === AF_INET) bytes.set(host.split('.').map(Number), socketAddressOffset.ipv4);
  else
    for (const [index, group] of groupsOf(host).entries())
      view.setUint16(socketAddressOffset.ipv6 + 2 * index, group, false);
  return bytes;
}

/** The port of what encodeSocketAddress made or the kernel filled in. */
export function portOf(bytes: Uint8Array): number {
  return new DataView(bytes.buffer, bytes.byteOffset).getUint16(socketAddressOffset.port, false);
}

/** The eight 16-bit groups of an IPv6 address; a zone after "%" has no place in them and is left out. */
function groupsOf(host: string): number[] {
  const text = (host.split('%')[0] as string).replace(/(\d+)\.(\d+)\.(\d+)\.(\d+)$/, (_all, ...bytes: string[]) => {
    const [a, b, c, d] = bytes.slice(0, 4).map(Number) as [number, number, number, number];
    return `${((a << 8) | b).toString(16)}:${((c << 8) | d).toString(16)}`;
  });
  const [head = '', tail] = text.split('::');
  const before = parseGroups(head);
  const after = parseGroups(tail ?? '');
  const zeros = Array.from({ length: 8 - before.length - after.length }, () => 0);
  return [...before, ...zeros, ...after];
}

function parseGroups(text: string): number[] {
  return text === '' ? [] : text.split(':').map((group) => parseInt(group, 16));
}
