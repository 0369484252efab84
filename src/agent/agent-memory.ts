// Memory as an agent registers it: where it lies, and how a process of the same host could map it.
import type { Device } from '../device/device.ts';

export type MemoryKind = 'host' | 'cuda';

/** It stays where it is, and allocated, until it is deregistered. */
export interface AgentMemory {
  readonly kind: MemoryKind;
  /** Native address of the first byte: of this process for 'host', a device pointer for 'cuda'. */
  readonly address: number;
  readonly bytes: number;
  /** Of 'host': the bytes themselves. */
  readonly view: Uint8Array | undefined;
  /** Of 'cuda': the device that owns it. */
  readonly device: Device | undefined;
  /** Of what `agent.allocate` gave: the file in /dev/shm that holds it, and where in it the memory begins. */
  readonly file: { readonly path: string; readonly bytes: number; readonly offset: number } | undefined;
}
