// Checks an address that a caller gave, before anything waits for it in vain.
import { invalidArgument } from '../core/errors.ts';

/** Fails with WL_INVALID_ARGUMENT. */
export function checkHost(host: unknown): void {
  if (typeof host !== 'string' || host === '') throw invalidArgument('host', host, 'an address or the name of a host');
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
