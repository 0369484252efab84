// Reads the sources as text: files, their imports and exports, for the rules of architecture.test.ts.
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The repository; this file runs from build/test/unit/architecture. */
export const root: string = fileURLToPath(new URL('../../../..', import.meta.url));

export interface ImportLine {
  /** A path from the repository's root for a relative import, else the package name as written. */
  readonly target: string;
  /** Names as the target exports them; '*' for the whole module. */
  readonly names: readonly string[];
  /** Only types are imported, so nothing is loaded. */
  readonly typeOnly: boolean;
}

export interface SourceFile {
  /** From the repository's root, with forward slashes. */
  readonly path: string;
  readonly text: string;
  readonly imports: readonly ImportLine[];
  /** Exported names, re-exports not included. */
  readonly exports: readonly string[];
}

/** All files under a folder of the repository whose name has one of the endings. */
export function listFiles(folder: string, endings: readonly string[]): string[] {
  return readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .map((name) => `${folder}/${name}`)
    .filter((path) => endings.some((ending) => path.endsWith(ending)) && statSync(join(root, path)).isFile())
    .toSorted();
}

export function readSource(path: string): SourceFile {
  return parseSource(path, readFileSync(join(root, path), 'utf8'));
}

const fromPattern = /^(?:import|export)\s+(type\s+)?([^'";]*?)\s*from\s+'([^']+)'/gm;
const barePattern = /^import\s+'([^']+)'/gm;
const dynamicPattern = /\bimport\(\s*'([^']+)'\s*\)/g;
const declarationPattern =
  /^export\s+(?:declare\s+)?(?:abstract\s+)?(?:async\s+)?(?:const|let|function\*?|class|interface|type|enum)\s+(\w+)/gm;
const listPattern = /^export\s+(?:type\s+)?\{([^}]*)\}(?!\s*from)/gm;

export function parseSource(path: string, text: string): SourceFile {
  const imports: ImportLine[] = [];
  for (const [, type, clause, specifier] of text.matchAll(fromPattern)) {
    imports.push(parseImport(path, specifier as string, clause as string, type !== undefined));
  }
  for (const pattern of [barePattern, dynamicPattern]) {
    for (const [, specifier] of text.matchAll(pattern))
      imports.push(parseImport(path, specifier as string, '*', false));
  }
  const exports = [...text.matchAll(declarationPattern)].map((match) => match[1] as string);
  for (const [, list] of text.matchAll(listPattern)) exports.push(...names(list as string, 1));
  return { path, text, imports, exports };
}

function parseImport(path: string, specifier: string, clause: string, typeKeyword: boolean): ImportLine {
  const list = /\{([^}]*)\}/.exec(clause)?.[1];
  const outside = clause
    .replace(/\{[^}]*\}/, '')
    .replaceAll(',', '')
    .trim();
  const parts = (list ?? '')
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '');
  const typeOnly =
    typeKeyword || (parts.length > 0 && outside === '' && parts.every((part) => part.startsWith('type ')));
  const imported = names(list ?? '', 0);
  if (outside.includes('*')) imported.push('*');
  else if (outside !== '') imported.push('default');
  return { target: resolveSpecifier(path, specifier), names: imported, typeOnly };
}

/** Names of `{ a, type b as c }`: the name before "as" (side 0) or after it (side 1). */
function names(list: string, side: 0 | 1): string[] {
  return list
    .split(',')
    .map((part) => part.trim().replace(/^type\s+/, ''))
    .filter((part) => part !== '')
    .map((part) => part.split(/\s+as\s+/).at(side === 0 ? 0 : -1) as string);
}

function resolveSpecifier(path: string, specifier: string): string {
  // Tests may name the compiled file.
  const source = specifier.replace(/\.js$/, '.ts');
  if (source.startsWith('.')) return normalize(join(dirname(path), source));
  if (source.startsWith('#lib/')) return source.replace('#lib/', 'src/');
  return specifier;
}

const prosePattern = /\/\*[^]*?\*\/|\/\/[^\n]*|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`/g;

/** The comments and the texts of a source, in order. */
export function proseOf(source: string): { readonly at: number; readonly text: string }[] {
  return [...source.matchAll(prosePattern)].map((match) => ({ at: match.index, text: match[0] }));
}

/** The source with an empty text in place of each comment and each text. */
export function withoutProse(source: string): string {
  return source.replaceAll(prosePattern, "''");
}
