import assert from 'node:assert/strict';
import test from 'node:test';
import { layOutRegions } from '#lib/windows/region-layout.js';

test('regions follow each other on boundaries, one may be the memory of another', () => {
  const { bytes, regions } = layOutRegions<'a' | 'b' | 'empty' | 'again' | 'c'>({
    a: 1,
    b: 130,
    empty: 0,
    again: 'b',
    c: 128,
  });
  assert.deepEqual(regions, {
    a: { offset: 0, bytes: 1 },
    b: { offset: 128, bytes: 130 },
    empty: { offset: 384, bytes: 0 },
    again: { offset: 128, bytes: 130 },
    c: { offset: 384, bytes: 128 },
  });
  assert.equal(bytes, 512);
  assert.deepEqual(layOutRegions<never>({}), { bytes: 0, regions: {} });
});
