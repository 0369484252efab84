// The setting transportRails: which network interfaces of this host carry packets, and in which order.
import { isIP, isIPv4, SocketAddress } from 'node:net';
import { WeftlineError } from '../core/errors.ts';
import { printable, quote } from '../core/quote.ts';
import { isLoopback } from '../meeting/loopback.ts';
import type { HostInterface } from './host-interfaces.ts';
import { matchingNames, type NamePattern, readNameList } from './name-list.ts';

/** One network interface of this host that carries packets. Two hosts pair their rails by index. */
export interface Rail {
  /** Name of the interface: eth0. */
  readonly name: string;
  /** A numeric address of it. */
  readonly address: string;
}

/** A host has a rail per GPU or two. More are a list that meant something else. */
const MAX_RAILS = 32;

/**
 * Reads a list of rails:
 * - empty: no rails; packets go where the control channel goes.
 * - `10.0.0.1,fd00::7`: addresses of this host.
 * - `eth0,ib`: interfaces. A name means that interface, or else all interfaces whose names begin so.
 * - `=eth0,ib0`, or `eth,=ib0`: the name alone, never a beginning.
 * - `^docker,veth`, `^=eth0`: all interfaces but these and loopback.
 *
 * An interface is used with its first IPv4 address, or else its first IPv6 address. Fails with WL_CONFIG for a name or an
 * address that this host does not have, and for a rail that is named twice.
 * @param text The value of the setting.
 * @param interfaces Those of this host.
 */
export function listRails(text: string, interfaces: readonly HostInterface[]): readonly Rail[] {
  const list = text.trim();
  if (list === '') return [];
  const wrong = (expected: string): WeftlineError => wrongRails(text, expected, interfaces);
  const names = readNameList(list);
  if (names === undefined) {
    throw wrong(
      'names of interfaces or addresses with commas between them, "=" before exact names, or "^" before the whole list',
    );
  }
  const { isExclusion, patterns } = names;
  const rails = isExclusion
    ? allBut(patterns, interfaces)
    : patterns.flatMap((pattern) => named(pattern, interfaces, wrong));
  if (rails.length === 0) throw wrong('a list that leaves an interface with an address');
  if (rails.length > MAX_RAILS) throw wrong(`at most ${MAX_RAILS} rails, not ${rails.length}`);
  const twice = rails.find((rail, index) => rails.findIndex(({ address }) => address === rail.address) < index);
  if (twice !== undefined) throw wrong(`each rail once, not ${twice.name} (${twice.address}) twice`);
  return rails;
}

function named(
  pattern: NamePattern,
  interfaces: readonly HostInterface[],
  wrong: (expected: string) => WeftlineError,
): readonly Rail[] {
  const address = canonical(pattern.name);
  if (address !== undefined) {
    const owner = interfaces.find((one) => owns(one, address));
    if (owner === undefined) throw wrong(`addresses of this host, not ${address}`);
    return [{ name: owner.name, address }];
  }
  const found = matchingNames(pattern, interfaces);
  if (found.length === 0) throw wrong(`interfaces of this host that have an address, not ${quote(pattern.name)}`);
  return found.map(railOf);
}

function allBut(patterns: readonly NamePattern[], interfaces: readonly HostInterface[]): readonly Rail[] {
  const excluded = new Set(
    patterns.flatMap((pattern) => {
      const address = canonical(pattern.name);
      if (address === undefined) return matchingNames(pattern, interfaces);
      return interfaces.filter((one) => owns(one, address));
    }),
  );
  return interfaces.filter((one) => !excluded.has(one) && !one.addresses.every(isLoopback)).map(railOf);
}

function railOf({ name, addresses }: HostInterface): Rail {
  const routed = addresses.filter((each) => !isLinkLocal(each));
  return { name, address: routed.find((each) => isIPv4(each)) ?? routed[0] ?? addresses[0]! };
}

/** Of 169.254.0.0/16, which a host gives itself where nobody else gave it an address. */
function isLinkLocal(address: string): boolean {
  return address.startsWith('169.254.');
}

/** An interface with one address of 127.0.0.0/8 has all of them. */
function owns({ addresses }: HostInterface, address: string): boolean {
  if (addresses.some((each) => canonical(each) === address)) return true;
  return isIPv4(address) && isLoopback(address) && addresses.some((each) => isIPv4(each) && isLoopback(each));
}

/** The one way to write an address; undefined for text that is none. */
function canonical(text: string): string | undefined {
  const family = isIP(text);
  if (family === 0 || text.includes('%')) return undefined;
  return new SocketAddress({ address: text, family: family === 6 ? 'ipv6' : 'ipv4' }).address;
}

function wrongRails(text: string, expected: string, interfaces: readonly HostInterface[]): WeftlineError {
  const there = interfaces.map(({ name, addresses }) => `${printable(name)} (${addresses.join(', ')})`);
  const names = interfaces.map(({ name }) => name);
  return new WeftlineError(
    'WL_CONFIG',
    `Invalid setting transportRails (WEFTLINE_TRANSPORT_RAILS): expected ${expected}, got ${quote(text)}. This host has ${there.join(', ') || 'no interface with an address'}`,
    { details: { setting: 'transportRails', value: text, expected, interfaces: names } },
  );
}
