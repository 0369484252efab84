// The datagram that finds out how large a datagram may be: sent before a connection carries packets, then never again.
import { defineLayout } from './layout.ts';

/** In place of a version of the transport, so that a late probe is dropped like a stranger's packet. */
export const PROBE_MARK = 0x504c57ff;

/** Zeros follow up to `bytes`. */
export const transportProbe = defineLayout(
  'TransportProbe',
  { mark: 'u32', bytes: 'u32', secretLow: 'u32', secretHigh: 'u32' },
  4,
);
