// What kernels hold of the host's agent: requests, their remote ranges, and what all of them share. In device memory.
import { defineLayout } from './layout.ts';

/** What all requests and waits of a device share: `const DeviceHost*` is what kernels wait with. */
export const deviceHostState = defineLayout('DeviceHostState', {
  /** TrapRecord, in host memory. */
  trap: 'ptr',
  timeoutNs: 'u64',
  /** DeviceQueue[queueCount]; channel c uses queue c % queueCount. */
  queues: 'ptr',
  queueCount: 'u32',
  reserved: 'u32',
});

/** A range of the peer that a request may write: its memory as this process maps it, or none. */
export const deviceRemote = defineLayout('DeviceRemote', {
  /** 0 if only the host reaches it. */
  direct: 'ptr',
  bytes: 'u64',
});

/** Writes from one local range to the ranges of one peer; kernels hold its address. */
export const deviceRequest = defineLayout('DeviceRequest', {
  host: 'ptr',
  local: 'ptr',
  localBytes: 'u64',
  /** The first of `remotes`, which most requests have alone. */
  firstDirect: 'ptr',
  firstBytes: 'u64',
  /** DeviceRemote[remoteCount] */
  remotes: 'ptr',
  remoteCount: 'u32',
  /** What the host knows it by. */
  number: 'u32',
  /** Number of the peer at this host, for error messages. */
  peer: 'u32',
  /** 1: what is put through the queue travels in the command itself, if it is 8 bytes at multiples of 8. */
  inlines: 'u32',
});
