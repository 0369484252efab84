// Without libucp, in processes that really cannot see it: a view of the file system in which it is deleted.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import test from 'node:test';
import { localFiles } from '#lib/native/file-probe.js';
import { findUcx } from '#lib/native/ucx.js';
import { skipWithout } from './support/requirements.js';

const path = findUcx(localFiles());
const layer = mkdtempSync(join(tmpdir(), 'weftline-layer-'));
test.after(() => rmSync(layer, { recursive: true, force: true }));

/** Lays a writable layer over the library's folder, seen by this process and its children only, and deletes it there. */
const hide = `
set -e
layer=$2
mount -t tmpfs none "$layer"
mkdir "$layer/upper" "$layer/work"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$layer/upper,workdir=$layer/work" "$1"
rm -f "$1"/libucp.so*
shift 2
exec "$@"
`;

interface Run {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function withoutUcx(...words: readonly string[]): Run {
  const program = [process.execPath, ...words];
  const hidden = ['-rm', 'sh', '-c', hide, 'sh', dirname(realpathSync(path ?? '/')), layer, ...program];
  const [command = '', ...rest] = path === undefined ? program : ['unshare', ...hidden];
  return spawnSync(command, rest, { encoding: 'utf8', timeout: 600_000 });
}

const isHidden = path === undefined || withoutUcx('-e', '').status === 0;
const cannotHide = skipWithout('mounts', isHidden ? undefined : 'needs root and overlay mounts, to hide libucp');

test(
  'ucx without libucp: agents that ask for it learn what to install, others go without',
  { skip: cannotHide },
  () => {
    const { stdout, stderr } = withoutUcx(new URL('./support/ucx-missing.js', import.meta.url).pathname);
    const { code, message, backends } = JSON.parse(stdout || `"${stderr}"`) as Record<string, unknown>;
    assert.equal(code, 'WL_UNSUPPORTED');
    assert.match(String(message), /libucp\.so\.0.*not found.*apt-get install libucx0/);
    assert.ok(!(backends as string[]).includes('ucx'));
  },
);

test('ucx without libucp: weftline doctor says so', { skip: cannotHide }, () => {
  const main = new URL('../../../dist/programs/cli/main.js', import.meta.url).pathname;
  const { stdout } = withoutUcx(main, 'doctor');
  assert.match(stdout, /UCX \(libucp\)\s+│ absent/);
  assert.match(stdout, /apt-get install libucx0/);
});
