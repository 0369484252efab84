// Folders for temporary files of a whole test file. Hooks of node's runner would not do: files of unit tests share a process, in
// which a hook of one may run while the next is loading.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const folders: string[] = [];

/** A new folder whose name begins so; it is removed when the process ends. */
export function folderUntilExit(prefix: string): string {
  if (folders.length === 0) {
    process.once('exit', () => folders.forEach((folder) => rmSync(folder, { recursive: true, force: true })));
  }
  const folder = mkdtempSync(join(tmpdir(), prefix));
  folders.push(folder);
  return folder;
}
