// What an agent tells of itself, as bytes and back. Nothing of a peer's bytes is believed before it is checked.
import { crc32 } from 'node:zlib';
import { Block, defineLayout, type Layout } from '../abi/layout.ts';
import { copyOf } from '../core/bytes.ts';
import { WeftlineError } from '../core/errors.ts';
import { isPrintable } from '../core/quote.ts';
import { type MemoryKind, memoryKinds } from './backend.ts';
import { type BackendName, backendNames } from './backends/backend-table.ts';

// The bytes that agents exchange about themselves: a header, then fields of tag, length and value. Little endian.

/** "WLAM" */
const METADATA_MAGIC = 0x4d_41_4c_57;
/** Goes up when a known tag changes its meaning; a reader refuses other versions and skips tags that it does not know. */
const METADATA_VERSION = 1;

export const metadataHeader = defineLayout(
  'AgentMetadata',
  {
    magic: 'u32',
    version: 'u16',
    /** 1 if every region of the agent is listed: the peer forgets those that are missing. */
    isWhole: 'u16',
    /** Bytes of everything, this header included. */
    bytes: 'u32',
    /** CRC-32 of what follows the header. */
    checksum: 'u32',
  },
  4,
);

const metadataField = defineLayout('AgentMetadataField', { tag: 'u16', reserved: 'u16', bytes: 'u32' }, 4);

/** Texts are UTF-8. */
const metadataTags = {
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

const metadataProcess = defineLayout('AgentProcess', { id: 'u32' }, 4);

const metadataRegion = defineLayout(
  'AgentRegion',
  {
    /** The region's number at its agent; never used for another region. */
    number: 'u32',
    /** Index in memoryKinds. */
    kind: 'u32',
    address: 'u64',
    bytes: 'u64',
  },
  8,
);

type ByBackend = ReadonlyMap<BackendName, Uint8Array>;

export interface RegionMetadata {
  readonly number: number;
  readonly name: string;
  readonly kind: MemoryKind;
  readonly address: number;
  readonly bytes: number;
  readonly info: ByBackend;
}

export interface AgentMetadata {
  readonly name: string;
  readonly incarnation: string;
  readonly host: string;
  readonly process: number;
  /** Every region of the agent is listed. */
  readonly isWhole: boolean;
  readonly connections: ByBackend;
  readonly regions: readonly RegionMetadata[];
  /** Numbers of regions that are gone. */
  readonly withdrawn: readonly number[];
}

const MAX_NAME_BYTES = 255;

export function encodeMetadata(metadata: AgentMetadata): Uint8Array {
  const fields = [
    field(metadataTags.name, Buffer.from(metadata.name)),
    field(metadataTags.incarnation, Buffer.from(metadata.incarnation)),
    field(metadataTags.host, Buffer.from(metadata.host)),
    field(metadataTags.process, filled(metadataProcess, { id: metadata.process })),
    ...[...metadata.connections].map((entry) => field(metadataTags.connection, named(entry))),
    ...metadata.regions.map((region) => field(metadataTags.region, encodeRegion(region))),
    ...(metadata.withdrawn.length === 0 ? [] : [field(metadataTags.withdrawn, encodeNumbers(metadata.withdrawn))]),
  ];
  const body = Buffer.concat(fields);
  const header = filled(metadataHeader, {
    magic: METADATA_MAGIC,
    version: METADATA_VERSION,
    isWhole: metadata.isWhole ? 1 : 0,
    bytes: metadataHeader.size + body.length,
    checksum: crc32(body),
  });
  return new Uint8Array(Buffer.concat([header, body]));
}

/** Fails with WL_PROTOCOL for bytes that are not metadata, are cut short, or are of another version. */
export function decodeMetadata(bytes: Uint8Array): AgentMetadata {
  if (bytes.length < metadataHeader.size) throw bad(`${bytes.length} bytes are too few`);
  const header = Block.over(metadataHeader, bytes);
  if (header.get('magic') !== METADATA_MAGIC) throw bad('they do not begin as it does');
  const version = header.get('version');
  if (version !== METADATA_VERSION) throw bad(`its version is ${version}, this side reads ${METADATA_VERSION}`);
  if (header.get('bytes') !== bytes.length) throw bad(`${bytes.length} bytes of ${header.get('bytes')} arrived`);
  const body = bytes.subarray(metadataHeader.size);
  if (header.get('checksum') !== crc32(body)) throw bad('its checksum does not fit');
  const fields = [...readFields(body)];
  const text = (tag: number): string => Buffer.from(one(fields, tag)).toString('utf8');
  const name = text(metadataTags.name);
  const incarnation = text(metadataTags.incarnation);
  checkAgentName(name, bad);
  if (!/^[0-9a-f]{16}$/.test(incarnation)) throw bad('it has no incarnation');
  return {
    name,
    incarnation,
    host: text(metadataTags.host),
    process: blockOf(metadataProcess, one(fields, metadataTags.process)).get('id'),
    isWhole: header.get('isWhole') === 1,
    connections: byBackend(fields, metadataTags.connection),
    regions: all(fields, metadataTags.region).map(decodeRegion),
    withdrawn: all(fields, metadataTags.withdrawn).flatMap(decodeNumbers),
  };
}

/** 1 to 255 bytes, all of which can be shown: it stands in error messages as it is, and is part of keys. */
export function checkAgentName(name: string, fail: (why: string) => WeftlineError): void {
  if (typeof name !== 'string' || name === '' || Buffer.byteLength(name) > MAX_NAME_BYTES || !isPrintable(name)) {
    throw fail(`an agent's name has 1 to ${MAX_NAME_BYTES} bytes and no control or invisible characters`);
  }
}

function encodeRegion({ number, name, kind, address, bytes, info }: RegionMetadata): Uint8Array {
  return Buffer.concat([
    filled(metadataRegion, { number, kind: memoryKinds.indexOf(kind), address, bytes }),
    field(metadataTags.regionName, Buffer.from(name)),
    ...[...info].map((entry) => field(metadataTags.regionInfo, named(entry))),
  ]);
}

function decodeRegion(bytes: Uint8Array): RegionMetadata {
  const block = blockOf(metadataRegion, bytes);
  const kind = memoryKinds[block.get('kind')];
  if (kind === undefined) throw bad(`it has a region of an unknown kind ${block.get('kind')}`);
  const address = block.get('address');
  const length = block.get('bytes');
  // Beyond that, sums of addresses would be rounded, and a range outside would pass for one within.
  if (!Number.isSafeInteger(address) || !Number.isSafeInteger(address + length)) {
    throw bad(`it has a region of ${length} bytes at ${address}, which ends beyond 2^53`);
  }
  const fields = [...readFields(bytes.subarray(metadataRegion.size))];
  return {
    number: block.get('number'),
    name: Buffer.from(one(fields, metadataTags.regionName)).toString('utf8'),
    kind,
    address,
    bytes: length,
    info: byBackend(fields, metadataTags.regionInfo),
  };
}

function encodeNumbers(numbers: readonly number[]): Uint8Array {
  const bytes = new Uint8Array(numbers.length * 4);
  const view = new DataView(bytes.buffer);
  for (const [index, number] of numbers.entries()) view.setUint32(index * 4, number, true);
  return bytes;
}

function decodeNumbers(bytes: Uint8Array): number[] {
  if (bytes.length % 4 !== 0) throw bad('its list of withdrawn regions is cut short');
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Array.from({ length: bytes.length / 4 }, (_, index) => view.getUint32(index * 4, true));
}

interface Field {
  readonly tag: number;
  readonly value: Uint8Array;
}

function field(tag: number, value: Uint8Array): Uint8Array {
  return Buffer.concat([filled(metadataField, { tag, bytes: value.length }), value]);
}

function* readFields(bytes: Uint8Array): Generator<Field> {
  let at = 0;
  while (at < bytes.length) {
    const rest = bytes.subarray(at);
    const head = blockOf(metadataField, rest);
    const end = metadataField.size + head.get('bytes');
    if (end > rest.length) throw bad('a field of it is longer than what holds it');
    yield { tag: head.get('tag'), value: rest.subarray(metadataField.size, end) };
    at += end;
  }
}

function all(fields: readonly Field[], tag: number): Uint8Array[] {
  return fields.filter((entry) => entry.tag === tag).map(({ value }) => value);
}

function one(fields: readonly Field[], tag: number): Uint8Array {
  const [value, ...others] = all(fields, tag);
  if (value === undefined || others.length > 0) throw bad(`field ${tag} of it is not there once`);
  return value;
}

function named([name, value]: readonly [string, Uint8Array]): Uint8Array {
  return Buffer.concat([Buffer.from(name), Buffer.of(0), value]);
}

/** Backends that this side does not know are left out. */
function byBackend(fields: readonly Field[], tag: number): ByBackend {
  const found = new Map<BackendName, Uint8Array>();
  for (const value of all(fields, tag)) {
    const end = value.indexOf(0);
    if (end === -1) throw bad('an entry of a backend has no name');
    const text = Buffer.from(value.subarray(0, end)).toString('utf8');
    const name = backendNames.find((known) => known === text);
    if (name !== undefined) found.set(name, copyOf(value.subarray(end + 1)));
  }
  return found;
}

function filled<Name extends string>(
  layout: Layout<Name>,
  values: Readonly<Partial<Record<Name, number>>>,
): Uint8Array {
  const bytes = new Uint8Array(layout.size);
  const block = Block.over(layout, bytes);
  for (const [name, value] of Object.entries(values) as [Name, number][]) block.set(name, value);
  return bytes;
}

function blockOf<Name extends string>(layout: Layout<Name>, bytes: Uint8Array): Block<Name> {
  if (bytes.length < layout.size) throw bad('a field of it is cut short');
  return Block.over(layout, bytes);
}

function bad(why: string): WeftlineError {
  return new WeftlineError('WL_PROTOCOL', `These bytes are not metadata of an agent: ${why}`);
}
