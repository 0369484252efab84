import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../../support/fast-check.ts';
import type { WeftlineError } from 'weftline';
import { type AgentMetadata, decodeMetadata, encodeMetadata } from '#lib/agent/metadata.js';

const sample: AgentMetadata = {
  name: 'prefill 3 – Zürich',
  incarnation: '0123456789abcdef',
  host: 'boot/shm/host',
  process: 4711,
  isWhole: true,
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
  withdrawn: [3, 0xffff_ffff],
};

function isRefused(bytes: Uint8Array): void {
  assert.throws(
    () => decodeMetadata(bytes),
    (error: WeftlineError) => error.code === 'WL_PROTOCOL' && error.message.startsWith('These bytes are not metadata'),
  );
}

test('metadata come back as they were, from any place of a buffer', () => {
  const encoded = encodeMetadata(sample);
  const shifted = new Uint8Array(encoded.length + 3);
  shifted.set(encoded, 3);
  assert.deepEqual(decodeMetadata(encoded), sample);
  assert.deepEqual(decodeMetadata(shifted.subarray(3)), sample);
  assert.deepEqual(decodeMetadata(encodeMetadata({ ...sample, isWhole: false })).isWhole, false);
});

test('bytes that were changed, cut, or never were metadata are refused', () => {
  const encoded = encodeMetadata(sample);
  for (let length = 0; length < encoded.length; length++) isRefused(encoded.subarray(0, length));
  for (let at = 0; at < encoded.length; at++) {
    // Whether all regions are listed is not covered.
    if (at === 6 || at === 7) continue;
    const changed = encoded.slice();
    changed[at] = (changed[at] as number) ^ 0x10;
    isRefused(changed);
  }
  fc.assert(fc.property(fc.uint8Array({ maxLength: 300 }), isRefused));
});

test('names that would confuse are refused', () => {
  for (const name of ['', 'a\nb', 'a\u202eb', 'a\u0085b', '\u200b', 'x'.repeat(256)])
    isRefused(encodeMetadata({ ...sample, name }));
  isRefused(encodeMetadata({ ...sample, incarnation: 'g123456789abcdef' }));
});
