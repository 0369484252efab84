// The bytes that agents exchange about themselves: a header, then fields of tag, length and value. Little endian.
import { defineLayout } from './layout.ts';

/** "WLAM" */
export const METADATA_MAGIC = 0x4d_41_4c_57;
/** Goes up when a known tag changes its meaning; a reader refuses other versions and skips tags that it does not know. */
export const METADATA_VERSION = 1;

export const metadataHeader = defineLayout(
  'AgentMetadata',
  {
    magic: 'u32',
    version: 'u16',
    /** 1 if every region of the agent is listed: the peer forgets those that are missing. */
    isWhole: 'u16',
    /** Of everything, this header included. */
    bytes: 'u32',
    /** CRC-32 of what follows the header. */
    checksum: 'u32',
  },
  4,
);

export const metadataField = defineLayout('AgentMetadataField', { tag: 'u16', reserved: 'u16', bytes: 'u32' }, 4);

/** Texts are UTF-8. */
export const metadataTags = {
  name: 1,
  /** 16 hexadecimal digits: milliseconds since 1970 (12), then random ones. The greater of two is the later. */
  incarnation: 2,
  /** Equal for agents that share a host's memory. */
  host: 3,
  /** metadataProcess */
  process: 4,
  /** Name of a backend, a zero byte, what the backend published. */
  connection: 5,
  /** metadataRegion, then fields: regionName, regionInfo of each backend. */
  region: 6,
  regionName: 7,
  /** Name of a backend, a zero byte, what its peers need to use the region. */
  regionInfo: 8,
  /** Numbers of regions that are gone, 4 bytes each, for a peer that keeps what it knows of others. */
  withdrawn: 9,
} as const;

export const metadataProcess = defineLayout('AgentProcess', { id: 'u32' }, 4);

export const metadataRegion = defineLayout(
  'AgentRegion',
  {
    /** Of the agent; never used for another region. */
    number: 'u32',
    /** 0 host, 1 cuda */
    kind: 'u32',
    address: 'u64',
    bytes: 'u64',
  },
  8,
);
