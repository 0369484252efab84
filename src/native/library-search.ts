// Finds shared libraries where the dynamic loader would, without loading them.
import type { FileProbe } from './file-probe.ts';

/** The path of the first library whose file name matches; `folders` are looked at after those of the loader. */
export function findLibrary(machine: FileProbe, fileName: RegExp, folders: readonly string[] = []): string | undefined {
  const fromEnvironment = (machine.env['LD_LIBRARY_PATH'] ?? '').split(':').filter((folder) => folder !== '');
  return (
    inFolders(machine, fileName, fromEnvironment) ??
    inLoaderCache(machine, fileName) ??
    inFolders(machine, fileName, [...systemFolders(machine), ...folders])
  );
}

function inFolders(machine: FileProbe, fileName: RegExp, folders: readonly string[]): string | undefined {
  for (const folder of folders) {
    const found = machine.list(folder).find((name) => fileName.test(name));
    if (found !== undefined) return `${folder}/${found}`;
  }
  return undefined;
}

/** The cache of the loader holds names and paths as strings that end with a zero byte. */
function inLoaderCache(machine: FileProbe, fileName: RegExp): string | undefined {
  const cache = machine.readText('/etc/ld.so.cache') ?? '';
  return cache
    .split('\0')
    .filter((text) => text.startsWith('/') && fileName.test(text.slice(text.lastIndexOf('/') + 1)))
    .find((path) => machine.exists(path));
}

function systemFolders(machine: FileProbe): string[] {
  const triplet = machine.arch === 'arm64' ? 'aarch64-linux-gnu' : 'x86_64-linux-gnu';
  return [`/lib/${triplet}`, `/usr/lib/${triplet}`, '/lib64', '/usr/lib64', '/lib', '/usr/lib', '/usr/local/lib'];
}
