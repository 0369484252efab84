// Where a peer is called or listened for, checked before the system is asked.
import { invalidArgument } from '../core/errors.ts';

export interface Address {
  readonly host: string;
  readonly port: number;
}

const MAX_PORT = 65_535;

/** Fails with WL_INVALID_ARGUMENT. A listener at port 0 takes any; a call to it finds nobody. */
export function checkAddress({ host, port }: Address): void {
  if (typeof host !== 'string' || host === '') throw invalidArgument('host', host, 'an address such as "127.0.0.1"');
  if (!Number.isInteger(port) || port < 0 || port > MAX_PORT) {
    throw invalidArgument('port', port, `a whole number from 0 to ${MAX_PORT}`);
  }
}
