// Which addresses stay within this host. Without a token, nothing listens at or calls any other.
import { WeftlineError } from '../core/errors.ts';
import type { CredentialKind } from './credentials.ts';

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
