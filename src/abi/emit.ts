// Writes the layouts as AssemblyScript constants: node dist/abi/emit.js OUT.ts
import { writeFileSync } from 'node:fs';
import type { Layout } from './layout.ts';
import { layouts } from './layouts.ts';

function assemblyScript(layout: Layout): string {
  const prefix = layout.name;
  const lines = Object.entries(layout.offset).map(([field, at]) => `export const ${prefix}_${field}: usize = ${at};`);
  return [...lines, `export const ${prefix}_size: usize = ${layout.size};`].join('\n');
}

const target = process.argv[2];
if (target === undefined) throw new Error('emit: name the file to write');
writeFileSync(
  target,
  `// Generated from src/abi by src/abi/emit.ts. Do not edit.\n${layouts.map(assemblyScript).join('\n\n')}\n`,
);
