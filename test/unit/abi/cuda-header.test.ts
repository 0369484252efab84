import assert from 'node:assert/strict';
import test from 'node:test';
import { cudaHeader, structure } from '#lib/abi/cuda-header.js';
import { defineLayout } from '#lib/abi/layout.js';

test('a layout becomes a structure with its offsets asserted', () => {
  const layout = defineLayout('Sample', { base: 'ptr', counts: { of: 'u32', count: 3 }, ratio: 'f32' });
  assert.deepEqual(structure(layout), [
    'struct alignas(8) Sample {',
    '  void* base;',
    '  u32 counts[3];',
    '  f32 ratio;',
    '};',
    '#ifndef __CUDACC_RTC__',
    'static_assert(sizeof(Sample) == 24, "Sample");',
    'static_assert(__builtin_offsetof(Sample, base) == 0, "Sample.base");',
    'static_assert(__builtin_offsetof(Sample, counts) == 8, "Sample.counts");',
    'static_assert(__builtin_offsetof(Sample, ratio) == 20, "Sample.ratio");',
    '#endif',
  ]);
});

test('the header holds the trap record and its constants', () => {
  const header = cudaHeader();
  assert.match(header, /constexpr u32 trapStateReadable = 2;/);
  assert.match(header, /struct alignas\(64\) TrapRecord \{\n {2}u32 state;/);
});
