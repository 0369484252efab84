// The header of a safetensors file: 8 bytes with its length, then JSON that says where in the rest each tensor lies.
import { WeftlineError } from '../../core/errors.ts';
import { printable, quote } from '../../core/quote.ts';

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
  /** The types of tensors that nobody can read, by name; most files that have some have them for others. */
  readonly unknown: ReadonlyMap<string, string>;
}

/** What the names of types look like, also of those that are still to come. */
const TYPE_NAME = /^[A-Z]\w{0,31}$/;

/** Characters of a path that an error shows. */
const PATH_LENGTH = 1024;

/**
 * Parses the header's JSON and checks that the tensors fill the file's remaining `dataBytes` without overlap or hole.
 * Fails with WL_FILE_FORMAT, naming `path`, the tensor and the values.
 */
export function parseHeader(json: Uint8Array, dataBytes: number, path: string): SafetensorsHeader {
  const { text, fields } = parseObject(json, path);
  const dataStart = 8 + json.byteLength;
  let metadata: Readonly<Record<string, string>> = {};
  const tensors = new Map<string, TensorEntry>();
  const unknown = new Map<string, string>();
  const extents: Extent[] = [];
  for (const [name, value] of Object.entries(fields)) {
    if (name === '__metadata__') {
      if (!isTextMap(value)) throw formatError(path, `__metadata__ is not a map of text to text`, { name });
      metadata = value;
    } else {
      const entry = parseEntry(name, value, { path, dataStart });
      extents.push(entry);
      if (isKnown(entry)) tensors.set(name, entry);
      else unknown.set(name, entry.dtype);
    }
  }
  checkContiguous(extents, { path, dataStart, dataBytes });
  // Last, since it takes longest: what is wrong in other ways has been refused by now.
  const duplicate = duplicateKey(text);
  if (duplicate !== undefined) {
    throw formatError(path, `its header has ${quote(duplicate)} twice`, { name: duplicate });
  }
  return { metadata, tensors, unknown };
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
  return new WeftlineError('WL_FILE_FORMAT', `Cannot use ${printable(path, PATH_LENGTH)}: ${what}`, {
    details: { path, ...details },
  });
}

interface Place {
  readonly path: string;
  readonly dataStart: number;
}

function parseObject(
  json: Uint8Array,
  path: string,
): { readonly text: string; readonly fields: Record<string, unknown> } {
  const excess = overLimits(json);
  if (excess !== undefined) throw formatError(path, excess);
  let text: string;
  let value: unknown;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(json);
    value = JSON.parse(text);
  } catch (cause) {
    const what = cause instanceof Error ? cause.message : String(cause);
    throw formatError(path, `its header is not JSON (${printable(what, 200)})`);
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw formatError(path, 'its header is not a JSON object');
  }
  return { text, fields: value as Record<string, unknown> };
}

type Extent = Pick<TensorEntry, 'name' | 'start' | 'bytes'>;

/** An entry of any type. */
type AnyEntry = Omit<TensorEntry, 'dtype'> & { readonly dtype: string };

function isKnown(entry: AnyEntry): entry is TensorEntry {
  return Object.hasOwn(safetensorsDtypes, entry.dtype);
}

function parseEntry(name: string, value: unknown, { path, dataStart }: Place): AnyEntry {
  const fields = readFields(value);
  if (typeof fields === 'string') {
    throw formatError(path, `the header's entry of tensor ${quote(name)} is wrong: ${fields}`, { tensor: name });
  }
  const { dtype, shape, data_offsets: offsets } = fields;
  const [start, end] = offsets;
  // How long a tensor of another type is, its offsets alone say.
  const bytes = Object.hasOwn(safetensorsDtypes, dtype)
    ? shape.reduce((product, extent) => product * extent, safetensorsDtypes[dtype as SafetensorsDtype])
    : Math.max(0, end - start);
  // Beyond the safe integers a product may be rounded to what the offsets hold.
  if (end - start !== bytes || !Number.isSafeInteger(bytes)) {
    throw formatError(
      path,
      `tensor ${quote(name)} is ${dtype} [${shape.join(', ')}], ${bytes} bytes, but its data_offsets ${start} to ${end} hold ${end - start}`,
      { tensor: name, shape, dtype, start, end },
    );
  }
  return { name, dtype, shape, start: dataStart + start, bytes };
}

interface EntryFields {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly data_offsets: readonly [start: number, end: number];
}

/** The fields of an entry, or what is wrong with them. Not a zod schema, which would report every wrong element of a hostile file. */
function readFields(value: unknown): EntryFields | string {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return `expected an object, got ${quote(value)}`;
  const { dtype, shape, data_offsets: offsets, ...others } = value as Readonly<Record<string, unknown>>;
  for (const name in others) return `it has an unknown field ${quote(name)}`;
  if (typeof dtype !== 'string' || !TYPE_NAME.test(dtype)) {
    return `dtype: expected the name of a type, such as ${Object.keys(safetensorsDtypes).join(', ')}, got ${quote(dtype)}`;
  }
  if (!Array.isArray(shape) || shape.length > MAX_DIMENSIONS || !shape.every(isSize)) {
    return `shape: expected at most ${MAX_DIMENSIONS} whole numbers from 0 to 2^53 - 1, got ${quote(shape)}`;
  }
  if (!Array.isArray(offsets) || offsets.length !== 2 || !offsets.every(isSize)) {
    return `data_offsets: expected two whole numbers from 0 to 2^53 - 1, got ${quote(offsets)}`;
  }
  return { dtype, shape, data_offsets: offsets as [number, number] };
}

function isSize(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function isTextMap(value: unknown): value is Readonly<Record<string, string>> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false;
  return Object.values(value).every((text) => typeof text === 'string');
}

function checkContiguous(entries: readonly Extent[], place: Place & { readonly dataBytes: number }): void {
  const { path, dataStart, dataBytes } = place;
  let end = dataStart;
  for (const entry of entries.toSorted((one, other) => one.start - other.start || one.bytes - other.bytes)) {
    if (entry.start !== end) {
      const what = entry.start < end ? 'overlaps the one before it' : 'leaves a hole before it';
      throw formatError(
        path,
        `tensor ${quote(entry.name)} ${what}: it starts at data offset ${entry.start - dataStart}, expected is ${end - dataStart}`,
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

// What a safetensors header may hold, checked byte by byte before it is parsed: parsing a hostile one costs gigabytes.

/** 256 bytes for each of MAX_TENSORS, several times what the largest published files have. The format allows 100 MB. */
export const MAX_HEADER_BYTES: number = 16 << 20;

const MAX_TENSORS = 65_536;
const MAX_DIMENSIONS = 32;

/** The header, an entry, a shape. */
const MAX_DEPTH = 3;

/** Colons and commas: an entry of four dimensions has eleven. */
const MAX_MARKS: number = 16 * MAX_TENSORS;

const mark = { quote: 0x22, comma: 0x2c, colon: 0x3a, backslash: 0x5c, open: 0x5b, close: 0x5d };

/** The braces are the brackets with this bit. */
const BRACE_BIT = 0x20;

/** Why the JSON text is more than a header may be; undefined if it is not. Takes any bytes, linear in their number. */
export function overLimits(json: Uint8Array): string | undefined {
  let depth = 0;
  let marks = 0;
  let names = 0;
  for (let at = 0; at < json.length; at += 1) {
    const byte = json[at]!;
    if (byte === mark.quote) at = endOfText(json, at);
    else if (byte === mark.comma) marks += 1;
    else if (byte === mark.colon) {
      marks += 1;
      if (depth === 1) names += 1;
    } else if ((byte | BRACE_BIT) === (mark.open | BRACE_BIT)) depth += 1;
    else if ((byte | BRACE_BIT) === (mark.close | BRACE_BIT)) depth -= 1;
    if (depth > MAX_DEPTH) return `its header is nested more than ${MAX_DEPTH} levels deep, at byte ${at}`;
    // One is __metadata__.
    if (names > MAX_TENSORS + 1) return `its header has more than ${MAX_TENSORS} tensors`;
    if (marks > MAX_MARKS) return `its header has more than ${MAX_MARKS} values`;
  }
  return undefined;
}

/** The place of the closing quote of the text that begins at `start`, or the end if it has none. */
function endOfText(json: Uint8Array, start: number): number {
  for (let at = start + 1; at < json.length; at += 1) {
    const byte = json[at]!;
    if (byte === mark.quote) return at;
    if (byte === mark.backslash) at += 1;
  }
  return json.length;
}

// Finds a key that a JSON object holds twice; JSON.parse keeps the last one without a word.

// Shared by all calls, each of which sets where they begin: making one per text would take longer than the search.
const bracketOrQuote = /["{}[\]]/g;

const quoteOrEscape = /["\\]/g;

const colon = /\s*:/y;

/** The first key that repeats within one object of `json`, which must be valid JSON; undefined if none does. Linear. */
export function duplicateKey(json: string): string | undefined {
  // One set for each open object, undefined for each open array.
  const open: (Set<string> | undefined)[] = [];
  let at = 0;
  for (;;) {
    bracketOrQuote.lastIndex = at;
    const found = bracketOrQuote.exec(json);
    if (found === null) return undefined;
    at = found.index + 1;
    const [token] = found;
    if (token === '{') open.push(new Set());
    else if (token === '[') open.push(undefined);
    else if (token !== '"') open.pop();
    else {
      at = endOfString(json, found.index);
      const keys = open.at(-1);
      // A string before a colon is a key in an object.
      if (keys === undefined || !isColonNext(json, at)) continue;
      const text = json.slice(found.index + 1, at - 1);
      const key = text.includes('\\') ? (JSON.parse(`"${text}"`) as string) : text;
      if (keys.has(key)) return key;
      keys.add(key);
    }
  }
}

/** One past the closing quote of the string that starts at `start`. A regular expression would run out of stack on long ones. */
function endOfString(json: string, start: number): number {
  quoteOrEscape.lastIndex = start + 1;
  for (;;) {
    const found = quoteOrEscape.exec(json);
    if (found === null) return json.length;
    if (found[0] === '"') return quoteOrEscape.lastIndex;
    quoteOrEscape.lastIndex++;
  }
}

function isColonNext(json: string, from: number): boolean {
  colon.lastIndex = from;
  return colon.test(json);
}
