// What npm runs after an installation in a clone or from a git URL, and before it packs: builds the library, and for a package
// shrinks the programs. npm runs "prepare" after "prepack" as well, so a step of its own before packing would be undone.
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

/** A script of this folder; ends this process with its exit code if it fails. */
function run(script, ...words) {
  const path = fileURLToPath(new URL(script, import.meta.url));
  const { status } = spawnSync(process.execPath, [path, ...words], { stdio: 'inherit' });
  if (status !== 0) process.exit(status ?? 1);
}

run('build.mjs', '--library');
if (['pack', 'publish'].includes(process.env.npm_command)) run('shrink.mjs');
