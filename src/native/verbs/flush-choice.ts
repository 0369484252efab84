// Which way makes what a device has written visible to a GPU before its kernel is told, and why.
import type { DeviceAttributes } from './facts.ts';

/**
 * - `fetch-add`: the device adds to the flag word that the kernel polls, by an atomic on a queue pair that is connected to
 *   itself. The atomic travels behind the writes, so it flushes them and tells of them at once.
 * - `read`: the device reads one byte of the memory in the same way; the read pushes the writes before it. Then the host
 *   adds to the flag word.
 * - `mapped`: the host adds to the flag word through its mapping at once; nothing is flushed.
 */
export type FlushWay = 'fetch-add' | 'read' | 'mapped';

export interface FlushCapabilities {
  /** Whoever sees the flag sees what the device has written before: memory of the host, or a GPU that orders its PCI writes. */
  readonly isOrdered: boolean;
  /** As the device says: `none` without atomics. */
  readonly atomicCap: DeviceAttributes['atomicCap'];
  /** The device may write to the flag word: it lies in registered memory. */
  readonly isFlagRegistered: boolean;
  /** The host can write to the flag word. */
  readonly isFlagMapped: boolean;
}

export interface FlushChoice {
  readonly way: FlushWay;
  /** As the end of a sentence. */
  readonly reason: string;
}

/** The cheapest way that is enough. Undefined if there is none: neither device nor host can write to the flag word. */
export function chooseFlush(capabilities: FlushCapabilities): FlushChoice | undefined {
  const { isOrdered, atomicCap, isFlagRegistered, isFlagMapped } = capabilities;
  if (isOrdered && isFlagMapped) return { way: 'mapped', reason: 'this memory shows writes in their order' };
  if (isFlagRegistered && atomicCap !== 'none') {
    return { way: 'fetch-add', reason: `the device has atomics (${atomicCap}) and may write to the flag` };
  }
  if (!isFlagMapped) return undefined;
  const why = isFlagRegistered ? 'the device has no atomics' : 'the device may not write to the flag';
  return { way: 'read', reason: why };
}
