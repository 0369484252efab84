// Makes dist/types: the declarations that users of the package see. They are what the package's entries reach once
// everything marked @internal is gone.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';

const importPattern = /(\bfrom\s+|\bimport\()(['"])(\.{1,2}\/[^'"]+)\2/g;

/** `root`: the repository. `entries`: the declarations that package.json's exports name, relative to dist/types. */
export function packageTypes(root, entries) {
  const source = join(root, 'build/types');
  const target = join(root, 'dist/types');
  const wanted = new Map();
  const waiting = entries.map((entry) => join(source, entry));
  while (waiting.length > 0) {
    const path = waiting.pop();
    const name = path.slice(source.length + 1);
    if (wanted.has(name)) continue;
    const text = readFileSync(path, 'utf8');
    for (const [, , , specifier] of text.matchAll(importPattern)) {
      waiting.push(resolve(dirname(path), specifier.replace(/\.ts$/, '.d.ts')));
    }
    // Sources import each other as .ts, which the compiler keeps in declarations.
    wanted.set(
      name,
      text.replaceAll(importPattern, (match) => match.replace(/\.ts(['"])$/, '.js$1')),
    );
  }
  removeAllBut(target, wanted);
  for (const [name, text] of wanted) {
    const path = join(target, name);
    if (existsSync(path) && readFileSync(path, 'utf8') === text) continue;
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
  }
}

function removeAllBut(folder, wanted) {
  if (!existsSync(folder)) return;
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    if (entry.isFile() && !wanted.has(path.slice(folder.length + 1))) rmSync(path);
  }
}
