// What agents read of each other: metadata, descriptions of regions, lists of descriptors, tables of KV stores.
import { crc32 } from 'node:zlib';
import {
  isOfProcess,
  localRegionInfo,
  localRegionKinds,
  readRegionInfo,
} from '#lib/agent/backends/local/local-region.js';
import { type AgentMetadata, decodeMetadata, encodeMetadata, metadataHeader } from '#lib/agent/metadata.js';
import { Block } from '#lib/abi/layout.js';
import { MultipathRemoteRegion } from '#lib/agent/backends/multipath/multipath-link.js';
import { decodeRdmaInfo, encodeRdmaInfo } from '#lib/agent/rdma/rdma-meeting.js';
import { rdmaRegionInfo } from '#lib/agent/rdma/rdma-messages.js';
import { RdmaRemoteRegion } from '#lib/agent/rdma/rdma-region.js';
import { readTable } from '#lib/kv/kv-table.js';
import { UcxKeys } from '#lib/agent/backends/ucx/ucx-worker.js';
import { DescriptorList } from 'weftline/agent';
import { type Decoder, Fault } from '../decoder.ts';

const sample: AgentMetadata = {
  name: 'prefill 3 – Zürich',
  incarnation: '0123456789abcdef',
  host: 'boot/shm/host',
  process: 4711,
  isWhole: true,
  withdrawn: [3],
  connections: new Map([
    ['local', Uint8Array.of(1, 0, 2)],
    ['multipath', new Uint8Array(0)],
  ]),
  regions: [
    {
      number: 7,
      name: 'cache',
      kind: 'cuda',
      address: 0x7fff_1234_5678,
      bytes: 80e9,
      info: new Map([['local', Uint8Array.of(9)]]),
    },
    { number: 8, name: '', kind: 'host', address: 4096, bytes: 1, info: new Map() },
  ],
};

/** Length and checksum are right again. */
export function repairMetadata(input: Uint8Array): Uint8Array {
  if (input.length < metadataHeader.size) return input;
  const header = new Block(metadataHeader, input.buffer, input.byteOffset);
  header.set('bytes', input.length);
  header.set('checksum', crc32(input.subarray(metadataHeader.size)));
  return input;
}

const metadata: Decoder = {
  name: 'agent-metadata',
  codes: ['WL_PROTOCOL'],
  fields: [...Object.values(metadataHeader.offset), 16, 18, 20, 24],
  memoryBytes: 2 ** 24,
  seeds: () => [
    encodeMetadata(sample),
    encodeMetadata({ ...sample, isWhole: false, regions: [] }),
    encodeMetadata({ ...sample, regions: [...sample.regions, ...sample.regions, ...sample.regions] }),
  ],
  repair: repairMetadata,
  run: (input) => {
    const decoded = decodeMetadata(input);
    for (const { address, bytes } of decoded.regions) {
      if (!Number.isSafeInteger(address + bytes))
        throw new Fault(`a region of ${bytes} bytes at ${address} was believed`);
    }
  },
};

const REGION_BYTES = 4096;

function regionInfo(kind: number): Uint8Array {
  const bytes = new Uint8Array(localRegionInfo.size);
  const block = new Block(localRegionInfo, bytes.buffer, 0);
  block.set('kind', kind);
  block.set('bytes', REGION_BYTES);
  block.set('mappedBytes', 2 * REGION_BYTES);
  block.set('address', 64);
  block.set('slot', 1);
  block.set('key', 2);
  return bytes;
}

const regionInfos: Decoder = {
  name: 'agent-local-region',
  codes: ['WL_PROTOCOL'],
  fields: Object.values(localRegionInfo.offset),
  seeds: () => Object.values(localRegionKinds).map(regionInfo),
  run: (input) => {
    isOfProcess(input);
    for (const kind of ['host', 'cuda'] as const) {
      const region = readRegionInfo(input, { kind, bytes: REGION_BYTES }, ({ bytes, offset }) => {
        if (!(offset >= 0 && offset + REGION_BYTES <= bytes))
          throw new Fault(`offset ${offset} of ${bytes} bytes was mapped`);
        return 4096;
      });
      if (region.bytes !== REGION_BYTES) throw new Fault(`a region of ${region.bytes} bytes was believed`);
    }
  },
};

const descriptors: Decoder = {
  name: 'descriptor-lists',
  codes: ['WL_PROTOCOL'],
  fields: [0, 4, 8, 12, 16, 24, 32, 40, 44],
  memoryBytes: 2 ** 24,
  seeds: () => [
    new DescriptorList('host', Float64Array.of(4096), Float64Array.of(64)).encode(),
    new DescriptorList('cuda', Float64Array.of(4096, 8192, 0x7fff_0000_0000), Float64Array.of(64, 1, 4096)).encode(),
    new DescriptorList('host', new Float64Array(40).fill(65_536), new Float64Array(40).fill(8)).encode(),
    new DescriptorList(
      'host',
      Float64Array.of(4096, 8192),
      Float64Array.of(64, 1),
      Float64Array.of(100, 1),
      Uint32Array.of(3, 1),
    ).encode(),
  ],
  run: (input) => {
    const list = DescriptorList.decode(input);
    const { addresses, lengths, strides, counts } = list.runs;
    for (const [run, count] of counts.entries()) {
      const end = (addresses[run] as number) + (count - 1) * (strides[run] as number) + (lengths[run] as number);
      if (count === 0 || !Number.isSafeInteger(end))
        throw new Fault(`${count} ranges that end at ${end} were believed`);
    }
    if (!Number.isSafeInteger(list.bytes)) throw new Fault(`ranges of ${list.bytes} bytes were believed`);
    if (Buffer.compare(list.encode(), input) !== 0 && list.length > counts.length === (input[12] === 1)) {
      throw new Fault('the list is another one when it is encoded again');
    }
  },
};

const kvTables: Decoder = {
  name: 'kv-tables',
  codes: ['WL_PROTOCOL'],
  fields: [0, 4, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64],
  weight: 0.3,
  seeds: () => [
    // Four blocks in two parts, one lease.
    Uint8Array.from(
      Buffer.concat([
        new Uint8Array(Uint32Array.of(0x564b_4c57, 1, 0, 4, 2, 1).buffer),
        new Uint8Array(BigUint64Array.of(65_536n, 64n, 64n, 131_072n, 256n, 128n).buffer),
        new Uint8Array(Uint32Array.of(9, 0, 9, 1, 3, 5, 6, 7).buffer),
      ]),
    ),
  ],
  run: (input) => {
    const { ranges, places } = readTable(input);
    const list = ranges.list.select(ranges.entries([0, ranges.blocks - 1]));
    if (!Number.isSafeInteger(list.bytes) || places.bytes !== input.length) throw new Fault('a table was believed');
  },
};

const multipathInfos: Decoder = {
  name: 'agent-multipath-infos',
  codes: ['WL_PROTOCOL'],
  weight: 0.1,
  seeds: () => [new Uint8Array(16).fill(7)],
  run: (input) => void new MultipathRemoteRegion(input, REGION_BYTES),
};

const rdmaInfos: Decoder = {
  name: 'agent-rdma-infos',
  codes: ['WL_PROTOCOL'],
  weight: 0.3,
  seeds: () => [
    encodeRdmaInfo({
      host: '127.0.0.1',
      port: 4711,
      network: 'boot/net',
      rail: { name: 'rxe0 port 1', linkLayer: 'Ethernet' },
    }),
    new Uint8Array(rdmaRegionInfo.size + 8).fill(7),
  ],
  run: (input) => {
    const info = decodeRdmaInfo(input);
    if (info !== undefined && !/^[0-9a-f.:%]+$/i.test(info.host)) throw new Fault(`host ${info.host} was believed`);
    void new RdmaRemoteRegion(input, { bytes: REGION_BYTES, peer: 'a peer', keys: new UcxKeys() });
  },
};

export const agentDecoders: readonly Decoder[] = [
  metadata,
  regionInfos,
  descriptors,
  kvTables,
  multipathInfos,
  rdmaInfos,
];
