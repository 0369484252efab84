import assert from 'node:assert/strict';
import test from 'node:test';
import { AutoProduct, FEW_TILES } from '#lib/moe/auto-product.js';
import type { GroupedProduct, Groups } from '#lib/moe/grouped-product.js';

function groups(tiles: number, busy: number): Groups {
  return { rows: [], tiles, busy, starts: 0, tileStarts: 0 };
}

test('AutoProduct takes the kernel while groups have few rows, cuBLAS when they have many, and owns both', () => {
  const calls: string[] = [];
  const pretend = (name: string): GroupedProduct => ({
    name,
    multiply: () => calls.push(name),
    [Symbol.dispose]: () => calls.push(`${name} disposed`),
  });
  const product = new AutoProduct(pretend('kernel'), pretend('cuBLAS'));
  const operands = { x: 0, w: 0, out: 0, n: 8, k: 8 };
  for (const [tiles, busy] of [
    [FEW_TILES, 1],
    [FEW_TILES * 4, 4],
    [FEW_TILES * 4 + 1, 4],
    [FEW_TILES * 8, 1],
  ] as const) {
    product.multiply(operands, groups(tiles, busy));
  }
  product[Symbol.dispose]();
  assert.deepEqual(calls, ['kernel', 'kernel', 'cuBLAS', 'cuBLAS', 'kernel disposed', 'cuBLAS disposed']);
});
