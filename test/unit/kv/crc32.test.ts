// Arithmetic of checksums, against zlib's; and what the kernel of kernels/cuda/kv-sums.cu does, step by step.
import assert from 'node:assert/strict';
import test from 'node:test';
import { crc32 } from 'node:zlib';

import { joinChecksums, shiftOf, threadTables } from '#lib/kv/crc32.js';
import fc from '../../support/fast-check.ts';

const bytes = fc.uint8Array({ maxLength: 3000 });

test('the checksum of two runs of bytes is joined from theirs', () => {
  fc.assert(
    fc.property(bytes, bytes, (first, second) => {
      const joined = joinChecksums(crc32(first), crc32(second), shiftOf(second.length));
      assert.equal(joined, crc32(Buffer.concat([first, second])));
    }),
  );
});

test('a long run is joined as well', () => {
  const zeros = new Uint8Array(5_000_001);
  assert.equal(joinChecksums(crc32('weft'), crc32(zeros), shiftOf(zeros.length)), crc32(zeros, crc32('weft')));
});

/** As the kernel: thread t takes every `threads`th word, behind zeros that fill the words up. */
function sumByThreads(words: Uint32Array, threads: number): number {
  const tables = threadTables(threads);
  const zeros = (threads - (words.length % threads)) % threads;
  let sum = 0;
  for (let thread = 0; thread < threads; thread++) {
    let state = thread >= zeros ? words[thread - zeros]! : 0;
    if (thread === zeros) state = ~state;
    for (let at = threads + thread; at < zeros + words.length; at += threads) {
      const [a, b, c, d] = [0, 8, 16, 24].map((bits, table) => tables[256 * table + ((state >>> bits) & 255)]!);
      state = a! ^ b! ^ c! ^ d! ^ words[at - zeros]!;
    }
    // multiply() of the kernel, by the sum of one that stands alone.
    sum ^= joinChecksums(state >>> 0, 0, tables[1024 + thread]! >>> 0);
  }
  return ~sum >>> 0;
}

test('threads that take words in turn get the checksum of all', () => {
  fc.assert(
    fc.property(fc.uint32Array({ minLength: 1, maxLength: 700 }), fc.constantFrom(1, 3, 32, 256), (words, threads) => {
      assert.equal(
        sumByThreads(words, threads),
        crc32(new Uint8Array(words.buffer, words.byteOffset, words.byteLength)),
      );
    }),
  );
});
