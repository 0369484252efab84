// A list of memory ranges as agents send it to each other: a head, then one descriptor per range.
import { defineLayout } from './layout.ts';

/** "WLDL" */
export const DESCRIPTOR_LIST_MAGIC = 0x4c_44_4c_57;

export const descriptorListHead = defineLayout('DescriptorListHead', {
  magic: 'u32',
  /** 0 host, 1 cuda */
  kind: 'u32',
  count: 'u32',
  reserved: 'u32',
});

export const descriptor = defineLayout('Descriptor', { address: 'u64', bytes: 'u64' });
