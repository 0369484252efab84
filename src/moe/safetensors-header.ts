// The header of a safetensors file: 8 bytes with its length, then JSON that says where in the rest each tensor lies.
import { z } from 'zod';
import { WeftlineError } from '../core/errors.ts';
import { duplicateKey } from './duplicate-key.ts';

/** Element types of the format and their bytes. */
export const safetensorsDtypes = {
  BOOL: 1,
  U8: 1,
  I8: 1,
  F8_E5M2: 1,
  F8_E4M3: 1,
  F8_E8M0: 1,
  I16: 2,
  U16: 2,
  F16: 2,
  BF16: 2,
  I32: 4,
  U32: 4,
  F32: 4,
  I64: 8,
  U64: 8,
  F64: 8,
} as const;

export type SafetensorsDtype = keyof typeof safetensorsDtypes;

/** Longest header that is read. */
export const maxHeaderBytes = 100_000_000;

export interface TensorEntry {
  readonly name: string;
  readonly dtype: SafetensorsDtype;
  readonly shape: readonly number[];
  /** First byte in the file. */
  readonly start: number;
  readonly bytes: number;
}

export interface SafetensorsHeader {
  readonly metadata: Readonly<Record<string, string>>;
  readonly tensors: ReadonlyMap<string, TensorEntry>;
}

const dtypeNames = Object.keys(safetensorsDtypes) as [SafetensorsDtype, ...SafetensorsDtype[]];
const size = z.number().int().nonnegative().max(Number.MAX_SAFE_INTEGER);
const metadataSchema = z.record(z.string(), z.string());
const entrySchema = z.strictObject({
  dtype: z.enum(dtypeNames),
  shape: z.array(size),
  data_offsets: z.tuple([size, size]),
});

/**
 * Parses the header's JSON and checks that the tensors fill the file's remaining `dataBytes` without overlap or hole.
 * Fails with WL_FILE_FORMAT, naming `path`, the tensor and the values.
 */
export function parseHeader(json: Uint8Array, dataBytes: number, path: string): SafetensorsHeader {
  const fields = parseObject(json, path);
  const dataStart = 8 + json.byteLength;
  let metadata: Readonly<Record<string, string>> = {};
  const tensors = new Map<string, TensorEntry>();
  for (const [name, value] of Object.entries(fields)) {
    if (name === '__metadata__') {
      const parsed = metadataSchema.safeParse(value);
      if (!parsed.success) throw formatError(path, `__metadata__ is not a map of text to text`, { name });
      metadata = parsed.data;
    } else tensors.set(name, parseEntry(name, value, { path, dataStart }));
  }
  checkContiguous([...tensors.values()], { path, dataStart, dataBytes });
  return { metadata, tensors };
}

/** The bytes before the data, and where each tensor goes: larger elements first, so that every tensor is aligned. */
export function layOutHeader(
  tensors: Readonly<Record<string, { readonly dtype: SafetensorsDtype; readonly shape: readonly number[] }>>,
  metadata: Readonly<Record<string, string>> = {},
): { readonly bytes: Uint8Array; readonly entries: ReadonlyMap<string, TensorEntry>; readonly fileBytes: number } {
  const fields: [name: string, value: unknown][] = [];
  if (Object.keys(metadata).length > 0) fields.push(['__metadata__', metadata]);
  const sorted = Object.entries(tensors).toSorted(
    ([, one], [, other]) => safetensorsDtypes[other.dtype] - safetensorsDtypes[one.dtype],
  );
  const relative: TensorEntry[] = [];
  let end = 0;
  for (const [name, { dtype, shape }] of sorted) {
    const bytes = shape.reduce((product, extent) => product * extent, safetensorsDtypes[dtype]);
    relative.push({ name, dtype, shape, start: end, bytes });
    fields.push([name, { dtype, shape, data_offsets: [end, end + bytes] }]);
    end += bytes;
  }
  const json = new TextEncoder().encode(JSON.stringify(Object.fromEntries(fields)));
  const padded = Math.ceil(json.length / 8) * 8;
  const bytes = new Uint8Array(8 + padded).fill(0x20);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(padded), true);
  bytes.set(json, 8);
  const entries = new Map(relative.map((entry) => [entry.name, { ...entry, start: entry.start + bytes.length }]));
  return { bytes, entries, fileBytes: bytes.length + end };
}

export function formatError(path: string, what: string, details: Record<string, unknown> = {}): WeftlineError {
  return new WeftlineError('WL_FILE_FORMAT', `Cannot use ${path}: ${what}`, { details: { path, ...details } });
}

interface Place {
  readonly path: string;
  readonly dataStart: number;
}

function parseObject(json: Uint8Array, path: string): Record<string, unknown> {
  let text: string;
  let value: unknown;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(json);
    value = JSON.parse(text);
  } catch (cause) {
    const what = cause instanceof Error ? cause.message : String(cause);
    throw new WeftlineError('WL_FILE_FORMAT', `Cannot use ${path}: its header is not JSON (${what})`, {
      details: { path },
      cause,
    });
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw formatError(path, 'its header is not a JSON object');
  }
  const duplicate = duplicateKey(text);
  if (duplicate !== undefined) {
    throw formatError(path, `its header has ${JSON.stringify(duplicate)} twice`, { name: duplicate });
  }
  return value as Record<string, unknown>;
}

function parseEntry(name: string, value: unknown, { path, dataStart }: Place): TensorEntry {
  const parsed = entrySchema.safeParse(value);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    const where = issue === undefined || issue.path.length === 0 ? '' : ` at ${issue.path.join('.')}`;
    const what = issue?.message ?? 'not understood';
    throw formatError(path, `the header's entry of tensor ${JSON.stringify(name)} is wrong${where}: ${what}`, {
      tensor: name,
    });
  }
  const { dtype, shape, data_offsets: offsets } = parsed.data;
  const [start, end] = offsets;
  const bytes = shape.reduce((product, extent) => product * extent, safetensorsDtypes[dtype]);
  if (end - start !== bytes) {
    throw formatError(
      path,
      `tensor ${JSON.stringify(name)} is ${dtype} [${shape.join(', ')}], ${bytes} bytes, but its data_offsets ${start} to ${end} hold ${end - start}`,
      { tensor: name, shape, dtype, start, end },
    );
  }
  return { name, dtype, shape, start: dataStart + start, bytes };
}

function checkContiguous(entries: TensorEntry[], place: Place & { readonly dataBytes: number }): void {
  const { path, dataStart, dataBytes } = place;
  let end = dataStart;
  for (const entry of entries.toSorted((one, other) => one.start - other.start || one.bytes - other.bytes)) {
    if (entry.start !== end) {
      const what = entry.start < end ? 'overlaps the one before it' : 'leaves a hole before it';
      throw formatError(
        path,
        `tensor ${JSON.stringify(entry.name)} ${what}: it starts at data offset ${entry.start - dataStart}, expected is ${end - dataStart}`,
        { tensor: entry.name, start: entry.start - dataStart, expected: end - dataStart },
      );
    }
    end += entry.bytes;
  }
  if (end - dataStart !== dataBytes) {
    const what = end - dataStart > dataBytes ? 'was cut off' : 'has bytes that no tensor owns';
    throw formatError(
      path,
      `the file ${what}: its header describes ${end - dataStart} bytes of data, after the header are ${dataBytes}`,
      { described: end - dataStart, present: dataBytes },
    );
  }
}
