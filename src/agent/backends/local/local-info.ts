// What the agent's local backend publishes: of itself, and of each region.
import { defineLayout } from '../../../abi/layout.ts';

/** Goes up with every change of this file, and of that of the mailbox: agents of another version choose another backend. */
export const LOCAL_INFO_VERSION = 3;
export const BOOT_ID_BYTES = 40;
/** Of the CUDA driver. */
export const MEMORY_HANDLE_BYTES = 64;

/** How to reach the mailbox of an agent. Two processes can if they live under the same boot and see the same processes. */
export const localConnectionInfo = defineLayout('LocalConnectionInfo', {
  version: 'u32',
  pid: 'u32',
  uid: 'u32',
  fd: 'u32',
  device: 'u64',
  inode: 'u64',
  /** Of the namespace in which `pid` means the process. */
  pidNamespace: 'u64',
  /** Of the mailbox in its owner's memory, and how long it is. */
  address: 'u64',
  bytes: 'u64',
  bootId: { of: 'u8', count: BOOT_ID_BYTES },
});

/** 1: memory that is mapped from a file; 2: any other memory of the process; 3: memory of a GPU. */
export const localRegionKinds = { shared: 1, process: 2, cuda: 3 } as const;

export const localRegionInfo = defineLayout('LocalRegionInfo', {
  kind: 'u32',
  /** Of the mailbox's table, and what stands there. */
  slot: 'u32',
  key: 'u32',
  /** shared: descriptor of the file in its owner. */
  fd: 'u32',
  bytes: 'u64',
  /** process: in the owner's memory. shared, cuda: from the begin of what is mapped. */
  address: 'u64',
  /** shared: of the file; cuda: `mappedBytes` of the allocation. */
  device: 'u64',
  inode: 'u64',
  mappedBytes: 'u64',
  /** cuda: name of the allocation for other processes. */
  handle: { of: 'u8', count: MEMORY_HANDLE_BYTES },
});
