import assert from 'node:assert/strict';
import test from 'node:test';
import {
  createAutoProduct,
  FEW_OPERATIONS,
  FEW_TILES,
  type GroupedOperands,
  type GroupedProduct,
  type Groups,
} from '#lib/programs/moe/cuda-moe-engine.js';

const large: GroupedOperands = { x: 0, w: 0, out: 0, n: 4096, k: 7168 };
const small: GroupedOperands = { x: 0, w: 0, out: 0, n: 128, k: 256 };

function groups(busy: number, tilesEach: number): Groups {
  return { rows: [], total: busy * tilesEach * 64, tiles: busy * tilesEach, busy, starts: 0, tileStarts: 0 };
}

test('createAutoProduct() takes the kernel while groups are small, cuBLAS when they are large, and owns both', () => {
  const calls: string[] = [];
  const pretend = (name: string): GroupedProduct => ({
    name,
    multiply: () => calls.push(name),
    [Symbol.dispose]: () => calls.push(`${name} disposed`),
  });
  const product = createAutoProduct(pretend('kernel'), pretend('cuBLAS'));
  product.multiply(large, groups(16, FEW_TILES));
  product.multiply(large, groups(16, FEW_TILES + 1));
  // One more tile than groups, because one group has more rows than the others.
  product.multiply(large, { ...groups(4, 1), tiles: 5 });
  const manyRows = Math.floor(FEW_OPERATIONS / (2 * small.n * small.k * 64));
  product.multiply(small, groups(32, manyRows));
  product.multiply(small, groups(32, manyRows + 1));
  product[Symbol.dispose]();
  assert.deepEqual(calls, ['kernel', 'cuBLAS', 'cuBLAS', 'kernel', 'cuBLAS', 'kernel disposed', 'cuBLAS disposed']);
});
