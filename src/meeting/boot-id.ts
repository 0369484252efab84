// What tells this boot of this host from every other boot and host.
import { readFileSync } from 'node:fs';

/** A random number that the kernel draws at each boot; the same in all containers of a host. */
export function bootId(): string {
  try {
    return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  } catch {
    return 'no-boot-id';
  }
}
