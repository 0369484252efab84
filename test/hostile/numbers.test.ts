// Any numbers, and what is none, in the arguments of public calls: a coded error or a result, and never the end of the process.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import { isWhole } from '../support/extent.ts';
import { seed } from '../support/seed.ts';
import { scenes } from './numbers/scenes.ts';

const script = fileURLToPath(new URL('./numbers/run-scene.js', import.meta.url));
/** The gate has the same inputs each time, the night others, 10^5 in all. */
const [SEED, COUNT] = isWhole ? [seed, Math.ceil(100_000 / Object.keys(scenes).length)] : [11, 300];
const folder = mkdtempSync(join(tmpdir(), 'weftline-numbers-'));
after(() => rmSync(folder, { recursive: true, force: true }));

for (const scene of Object.keys(scenes)) {
  test(`${scene}: ${COUNT} calls with any numbers`, async () => {
    const file = join(folder, scene);
    const child = spawn(process.execPath, [script, scene, `${SEED}`, '0', `${COUNT}`, file], {
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: 1_700_000,
    });
    let said = '';
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (part: Buffer) => (said += part.toString()));
    const [code, signal] = (await once(child, 'close')) as [number | null, string | null];
    const last = code === 0 ? '' : `\nlast: ${readFileSync(file, 'utf8')}`;
    const again = `\nagain: node build/test/hostile/numbers/run-scene.js ${scene} ${SEED} INDEX 1 FILE`;
    assert.deepEqual({ code, signal }, { code: 0, signal: null }, `${said}${last}${again}`);
  });
}
