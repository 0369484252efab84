// Where the example block cannot be kept, the error says what to do.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { exampleBlock } from '#lib/programs/moe/example-block.js';
import { withCode } from '../../../support/with-code.ts';

test('a cache folder that cannot be is an error that names the variable', async (context) => {
  const root = mkdtempSync(join(tmpdir(), 'weftline-example-'));
  context.after(() => rmSync(root, { recursive: true }));
  const file = join(root, 'file');
  writeFileSync(file, '');
  for (const [folder, why] of [
    [undefined, 'no home folder'],
    [file, 'EEXIST'],
    [join(file, 'cache'), 'ENOTDIR'],
    ['/proc/.cache/weftline', 'ENOENT'],
  ] as const) {
    await assert.rejects(exampleBlock(folder), withCode('WL_FILE', why, 'set WEFTLINE_CACHE to a folder'));
  }
});
