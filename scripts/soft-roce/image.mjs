// The guest's first file system: a static shell, the kernel's modules, and the script that hands over to the host's root.
import { spawnSync } from 'node:child_process';
import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { run } from './run.mjs';

const initScript = fileURLToPath(new URL('guest-init.sh', import.meta.url));
const BUSYBOX = '/bin/busybox';

/** Writes the image to `file`; `kernel` is the folder of prepareKernel(). */
export function makeImage(kernel, file) {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-soft-roce-image-'));
  try {
    for (const made of ['bin', 'modules']) mkdirSync(join(folder, made));
    copyFileSync(BUSYBOX, join(folder, 'bin/busybox'));
    copyFileSync(initScript, join(folder, 'init'));
    chmodSync(join(folder, 'init'), 0o755);
    for (const module of readdirSync(join(kernel, 'modules'))) {
      copyFileSync(join(kernel, 'modules', module), join(folder, 'modules', module));
    }
    const names = run('find', ['.'], { cwd: folder });
    const { status, stdout, stderr } = spawnSync('cpio', ['--create', '--format=newc', '--quiet'], {
      cwd: folder,
      input: names,
      maxBuffer: 2 ** 28,
    });
    if (status !== 0) throw new Error(`cpio ended with ${status}: ${String(stderr).trim()}`);
    writeFileSync(file, stdout);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
