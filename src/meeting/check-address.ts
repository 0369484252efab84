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
