// Memory as an agent registers it: where it lies, and how a process of the same host could map it.
import type { HostAccess } from '../device/host-access.ts';
import type { SharedMemory } from '../windows/shared-memory.ts';

/** Whose memory it is: of the host, or of a GPU. */
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
  readonly device: HostAccess | undefined;
  /** Of what `agent.allocate` gave: the memory that other processes of this host can map, and where in it this begins. */
  readonly shared: { readonly memory: SharedMemory; readonly offset: number } | undefined;
}
