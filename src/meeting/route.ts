// Finds the address of this host from which packets to another host come: the one at which that host reaches this one.
import { createSocket } from 'node:dgram';
import { lookup } from 'node:dns/promises';
import { networkInterfaces } from 'node:os';
import { getEnvironmentData, setEnvironmentData } from 'node:worker_threads';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { isPrintable, quote } from '../core/quote.ts';
import type { CredentialKind } from './credentials.ts';

// The address by which other hosts reach this one, where its own route does not tell: on the host that its own name calls
// 127.0.1.1, as Debian does, the route to that name stays within the host. Ranks of other hosts know which address they called.

const REACHED = 'weftline.reachedAddress';

/**
 * `called`: by rank, the address at which each has called the store of the job, as it says; `own`: that of this rank. If it
 * is a loopback address the store is on this host, so that the address that others called is this host's. Holds for threads
 * that start later.
 */
export function noteReachedAddress(called: readonly unknown[], own: string): void {
  if (!isLoopback(own)) return;
  const addresses = called.filter((address) => typeof address === 'string');
  const reached = addresses.find((address) => !isLoopback(address) && isOwn(address));
  if (reached !== undefined) setEnvironmentData(REACHED, reached);
}

/** Undefined if no other host has told it. */
export function reachedAddress(): string | undefined {
  const reached = getEnvironmentData(REACHED);
  return typeof reached === 'string' ? reached : undefined;
}

/** False behind a translation of addresses, where others call an address that nothing here can listen at. */
function isOwn(address: string): boolean {
  return Object.values(networkInterfaces()).some((entries) => entries?.some((entry) => entry.address === address));
}

/** Any port: connecting a UDP socket asks the kernel for the route and sends nothing. */
const NO_PORT = 9;

/** A numeric address of this host. Fails with WL_INVALID_ARGUMENT for a name that no host has, or without a route. */
export async function addressTowards(host: string): Promise<string> {
  checkHost(host);
  try {
    const { address, family } = await lookup(host);
    const socket = createSocket(family === 6 ? 'udp6' : 'udp4');
    try {
      await new Promise<void>((resolve, reject) => {
        socket.once('error', reject);
        socket.connect(NO_PORT, address, resolve);
      });
      return socket.address().address;
    } finally {
      socket.close();
    }
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new WeftlineError('WL_INVALID_ARGUMENT', `No route from this host to ${quote(host)}: ${reason}`, {
      details: { host },
      cause,
    });
  }
}

// Checks an address that a caller gave, before anything waits for it in vain.

/** Fails with WL_INVALID_ARGUMENT. */
export function checkHost(host: unknown): void {
  // Errors show it as it is.
  if (typeof host !== 'string' || host === '' || !isPrintable(host))
    throw invalidArgument('host', host, 'an address or the name of a host');
}

/** Fails with WL_INVALID_ARGUMENT. `least`: 0 where that means any port. */
export function checkPort(port: unknown, least: 0 | 1): void {
  if (typeof port === 'number' && Number.isInteger(port) && port >= least && port < 65_536) return;
  throw invalidArgument('port', port, `an integer from ${least} to 65535`);
}

/** The same; what its host and port are is checked where they are used. Fails with WL_INVALID_ARGUMENT. */
export function requireAddress<T>(address: T): T {
  if (typeof address === 'object' && address !== null) return address;
  throw invalidArgument('address', address, 'a host and a port: { host, port }');
}

// Tells which addresses stay within this host. Without a token, nothing listens at or calls any other.

/** True for 127.0.0.0/8, ::1, and localhost, whose address is looked at once it is known. */
export function isLoopback(host: string): boolean {
  const address = host.toLowerCase().replace(/^::ffff:(?=\d+\.)/, '');
  return address === 'localhost' || address === '::1' || /^127(\.\d{1,3}){3}$/.test(address);
}

/** True for the addresses that mean all of a host's own when it listens, and nobody else's when it calls. */
export function isUnspecified(host: string): boolean {
  return host === '0.0.0.0' || host === '::';
}

/** Fails with WL_CONFIG, saying how to give a token. `what` is what needs it: "listening at 10.0.0.1". */
export function requireToken(host: string, kind: CredentialKind, what: string): void {
  if (kind === 'token' || isLoopback(host)) return;
  throw new WeftlineError(
    'WL_CONFIG',
    `A token is needed for ${what}, which is not a loopback address: make one with "openssl rand -hex 32" and give it to all processes that meet, as WEFTLINE_TOKEN or by the option token. Without a token, only processes of one user on one host meet, at 127.0.0.1`,
    { details: { host, variable: 'WEFTLINE_TOKEN' } },
  );
}
