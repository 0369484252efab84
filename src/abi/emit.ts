// Run by the build: writes what kernels share with the host, as a CUDA header and as an AssemblyScript module.
import { writeFileSync } from 'node:fs';
import { cudaHeader } from './cuda-header.ts';
import { fragmentCheck, packetKey, sortedFragment } from './cpu-kernels.ts';
import {
  elementFormats,
  FP8_GROUP,
  FP8_SUM_ALIGNMENT,
  FP8_SUM_FORMAT,
  reductionFormats,
  reductions,
} from './element-formats.ts';
import { EXCHANGE_HEADER_WORDS, exchangeFields, exchangeOwnFields } from './exchange-record.ts';
import { descriptorBlockHeader, fragmentDescriptor } from './unpack.ts';
import { lowLatencyScales } from './low-latency.ts';

// The text of the module "abi" of kernels/wasm: constants that CPU kernels share with the host.

/** Prefix and numbers: { elementFormat: { bf16: 0 } } becomes `ELEMENT_FORMAT_BF16`. */
const constants: Readonly<Record<string, Readonly<Record<string, number>>>> = {
  elementFormat: elementFormats,
  reductionFormat: reductionFormats,
  reduction: reductions,
  fp8: { group: FP8_GROUP, sumAlignment: FP8_SUM_ALIGNMENT, sumFormat: FP8_SUM_FORMAT },
  exchangeRecord: {
    agreed: exchangeFields.length,
    rowBound: exchangeFields.length + exchangeOwnFields.indexOf('rowBound'),
    counts: EXCHANGE_HEADER_WORDS,
  },
  lowLatencyScales,
  fragment: { ...fragmentDescriptor.offset, bytes: fragmentDescriptor.size },
  blockHeader: { ...descriptorBlockHeader.offset, bytes: descriptorBlockHeader.size },
  fragmentCheck: { ...fragmentCheck.offset, bytes: fragmentCheck.size },
  packetKey: packetKey.offset,
  sortedFragment: { ...sortedFragment.offset, bytes: sortedFragment.size },
};

function assemblyScriptModule(): string {
  const lines = Object.entries(constants).flatMap(([prefix, values]) =>
    Object.entries(values).map(([name, value]) => `export const ${upper(prefix)}_${upper(name)}: i32 = ${value};`),
  );
  return ['// Generated from src/abi. Do not edit.', ...lines, ''].join('\n');
}

function upper(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => `_${letter}`).toUpperCase();
}

const [header, module] = process.argv.slice(2);
if (header === undefined || module === undefined) throw new Error('usage: node dist/abi/emit.js HEADER MODULE');
writeFileSync(header, cudaHeader());
writeFileSync(module, assemblyScriptModule());
