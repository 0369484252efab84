import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../support/fast-check.ts';
import { WeftlineError } from 'weftline';
import {
  duplicateKey,
  layOutHeader,
  MAX_HEADER_BYTES,
  overLimits,
  parseHeader,
  safetensorsDtypes,
} from '#lib/programs/moe/safetensors-header.js';

const encoder = new TextEncoder();
const extent = fc.oneof(fc.nat(20), fc.constantFrom(-1, 0.5, 2 ** 31, 2 ** 53, 1e300, 'x', null));
const entry = fc.record(
  {
    dtype: fc.oneof(fc.constantFrom(...Object.keys(safetensorsDtypes)), fc.string()),
    shape: fc.oneof(fc.array(extent, { maxLength: 4 }), fc.anything()),
    data_offsets: fc.oneof(fc.tuple(extent, extent), fc.array(extent, { maxLength: 3 }), fc.anything()),
  },
  { requiredKeys: [] },
);
const anyName = fc.oneof(fc.string(), fc.constantFrom('__metadata__', '__proto__', 'constructor', 'x'));

/** Parses; any error but WL_FILE_FORMAT fails the test. */
function parses(json: Uint8Array, dataBytes: number): boolean {
  try {
    parseHeader(json, dataBytes, 'FILE');
    return true;
  } catch (error) {
    assert.ok(error instanceof WeftlineError && error.code === 'WL_FILE_FORMAT', String(error));
    assert.match(error.message, /FILE/);
    return false;
  }
}

test('parseHeader() survives every JSON-like header', () => {
  fc.assert(
    fc.property(fc.dictionary(anyName, fc.oneof(entry, fc.anything())), fc.nat(100), (header, dataBytes) => {
      parses(
        encoder.encode(
          JSON.stringify(header, (_key, value: unknown) => (typeof value === 'bigint' ? Number(value) : value)),
        ),
        dataBytes,
      );
    }),
    { numRuns: 1000 },
  );
});

test('parseHeader() survives every sequence of bytes', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 200 }), fc.nat(100), (json, dataBytes) => void parses(json, dataBytes)),
  );
});

const plan = fc.dictionary(
  fc.string().filter((name) => name !== '__metadata__'),
  fc.record({
    dtype: fc.constantFrom(...(Object.keys(safetensorsDtypes) as (keyof typeof safetensorsDtypes)[])),
    shape: fc.array(fc.nat(9), { maxLength: 4 }),
  }),
);

test('parseHeader() reads what layOutHeader() lays out, with every tensor aligned to its elements', () => {
  fc.assert(
    fc.property(plan, fc.dictionary(fc.string(), fc.string()), (tensors, metadata) => {
      const { bytes, entries, fileBytes } = layOutHeader(tensors, metadata);
      const header = parseHeader(bytes.subarray(8), fileBytes - bytes.length, 'FILE');
      assert.deepEqual(new Set(header.tensors.values()), new Set(entries.values()));
      for (const { start, dtype } of entries.values()) assert.equal(start % safetensorsDtypes[dtype], 0);
    }),
  );
});

test('parseHeader() refuses a good header after one byte changed, or reads it without harm', () => {
  const { bytes, fileBytes } = layOutHeader({
    x: { dtype: 'BF16', shape: [4, 8] },
    ids: { dtype: 'I64', shape: [4, 2] },
  });
  fc.assert(
    fc.property(fc.nat(bytes.length - 9), fc.nat(255), (at, value) => {
      const json = bytes.slice(8);
      json[at] = value;
      parses(json, fileBytes - bytes.length);
    }),
    { numRuns: 2000 },
  );
});

test('duplicateKey() finds nothing in what JSON.stringify() wrote, and a key that was written twice', () => {
  fc.assert(
    fc.property(fc.jsonValue(), (value) => {
      assert.equal(duplicateKey(JSON.stringify(value, undefined, 1)), undefined);
    }),
  );
  fc.assert(
    fc.property(fc.string(), fc.jsonValue(), (key, value) => {
      const pair = `${JSON.stringify(key)} : ${JSON.stringify(value)}`;
      assert.equal(duplicateKey(`[{"a": {}}, {${pair}, ${pair}}]`), key);
    }),
  );
});

test('overLimits() takes every sequence of bytes, and finds nothing in what layOutHeader() lays out', () => {
  fc.assert(
    fc.property(
      fc
        .array(fc.constantFrom('[', ']', '{', '}', '"', ',', ':', '\\', ' ', 'a', '1'), { maxLength: 60 })
        .map((characters) => characters.join('')),
      (text) => {
        const excess = overLimits(encoder.encode(text));
        let parsed: unknown;
        try {
          parsed = JSON.parse(text);
        } catch {
          return;
        }
        assert.equal(excess === undefined, depthOf(parsed) <= 3, text);
      },
    ),
    { numRuns: 20_000 },
  );
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 5 }), (value) => {
      assert.equal(overLimits(encoder.encode(JSON.stringify(value))) === undefined, depthOf(value) <= 3);
    }),
  );
  fc.assert(
    fc.property(plan, fc.dictionary(fc.string(), fc.string()), (tensors, metadata) => {
      assert.equal(overLimits(layOutHeader(tensors, metadata).bytes.subarray(8)), undefined);
    }),
  );
});

test('the largest headers of each kind are read or refused without harm', () => {
  const filler = 'x'.repeat(MAX_HEADER_BYTES / 2);
  const headers = [
    `{"__metadata__":{${Array.from({ length: 100_000 }, (_, index) => `"${index}":"a"`).join()}}}`,
    `{"__metadata__":{${Array.from({ length: 100_000 }, (_, index) => `"${index}":1`).join()}}}`,
    `{"a":{${Array.from({ length: 100_000 }, (_, index) => `"${index}":1`).join()}}}`,
    `{"a":{"dtype":"U8","shape":[${Array.from({ length: 100_000 }, () => '-1').join()}],"data_offsets":[0,1]}}`,
    `{"a":{"dtype":"${filler}","shape":[1],"data_offsets":[0,1]}}`,
    `{"${filler}":{"dtype":"U8","shape":[1],"data_offsets":[0,2]}}`,
    `{${Array.from({ length: 65_536 }, (_, index) => `"${index}":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`).join()}}`,
    `{"a"${' '.repeat(MAX_HEADER_BYTES / 2)}:1}`,
    `{"${'\\\\'.repeat(MAX_HEADER_BYTES / 4)}":1}`,
  ];
  const read = headers.map((header) => parses(encoder.encode(header), 0));
  assert.deepEqual(read, [true, false, false, false, false, false, true, false, false]);
});

function depthOf(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  return 1 + Math.max(0, ...Object.values(value).map(depthOf));
}
