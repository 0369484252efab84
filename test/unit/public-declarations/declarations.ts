// Reads the built declarations of what the package's entries export: no compiler, the text is regular enough.
import { readFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../../../..', import.meta.url));

/** A member of a class or interface. */
interface Member {
  readonly name: string;
  /** The comment above it, without its signs; empty if there is none. */
  readonly comment: string;
  /** A method or a getter. */
  readonly isMethod: boolean;
}

/** Something that an entry of the package exports. */
export interface PublicDeclaration {
  /** File of the declaration, relative to the repository. */
  readonly file: string;
  readonly name: string;
  readonly kind: 'class' | 'interface' | 'function' | 'const' | 'type';
  readonly comment: string;
  readonly members: readonly Member[];
  /** Names of a function's parameters. */
  readonly parameters: readonly string[];
}

/** Everything that the entries in package.json export, once each. */
export function publicDeclarations(): PublicDeclaration[] {
  const { exports: entries } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    readonly exports: Readonly<Record<string, string | { readonly types?: string }>>;
  };
  const found = new Map<string, PublicDeclaration>();
  for (const entry of Object.values(entries)) {
    if (typeof entry === 'string' || entry.types === undefined) continue;
    for (const [file, names] of reexports(join(root, entry.types))) {
      for (const declaration of declarationsOf(file)) {
        if (names.has(declaration.name)) found.set(`${file} ${declaration.name}`, declaration);
      }
    }
  }
  return [...found.values()];
}

/** Classes and interfaces, whose objects have methods. */
export function publicClasses(): PublicDeclaration[] {
  return publicDeclarations().filter(({ kind }) => kind === 'class' || kind === 'interface');
}

/** Names that an index file takes from each file. */
function reexports(index: string): Map<string, Set<string>> {
  const text = readFileSync(index, 'utf8');
  const result = new Map<string, Set<string>>();
  for (const [, names = '', path = ''] of text.matchAll(/export (?:type )?\{([^}]*)\} from '([^']+)'/g)) {
    const file = resolve(dirname(index), path.replace(/\.[jt]s$/, '.d.ts'));
    const set = result.get(file) ?? new Set<string>();
    for (const name of names.split(','))
      set.add(
        name
          .replace(/^\s*type /, '')
          .replace(/ as .*/, '')
          .trim(),
      );
    result.set(file, set);
  }
  return result;
}

const head = /^export (?:declare )?(?:abstract )?(class|interface|function|const|type) (\w+)/;
const member = /^ {4}(?:static |readonly |set |abstract )*(get )?((?:\[[\w.]+\]|\w+)\??)(?=[<(:?])(.)/;

function declarationsOf(file: string): PublicDeclaration[] {
  const lines = readFileSync(file, 'utf8').split('\n');
  const result: (Omit<PublicDeclaration, 'members'> & { members: Member[] })[] = [];
  let isInside = false;
  for (const [index, line] of lines.entries()) {
    const [, kind, name] = head.exec(line) ?? [];
    if (kind !== undefined && name !== undefined) {
      result.push({
        file: relative(root, file),
        name,
        kind: kind as PublicDeclaration['kind'],
        comment: commentAbove(lines, index),
        members: [],
        parameters: kind === 'function' ? parametersOf(lines.slice(index).join('\n')) : [],
      });
      isInside = line.endsWith('{');
    } else if (line.startsWith('}')) isInside = false;
    else if (isInside && !/^ {4}(?:private|protected) /.test(line)) {
      const [, getter, found, next = ''] = member.exec(line) ?? [];
      if (found === undefined) continue;
      const isMethod = getter !== undefined || '(<'.includes(next);
      result.at(-1)?.members.push({ name: found.replace('?', ''), comment: commentAbove(lines, index), isMethod });
    }
  }
  return result;
}

/** Names at the outermost level of the parentheses that come first; one that is taken apart has none. */
function parametersOf(text: string): string[] {
  const names: string[] = [];
  let depth = 0;
  for (const [word] of text.slice(text.indexOf('(')).matchAll(/=>|\w+\??:|[({[<)}\]>]/g)) {
    if ('({[<'.includes(word)) depth += 1;
    else if (')}]>'.includes(word)) depth -= 1;
    else if (depth === 1 && word !== '=>') names.push(word.replace(/\??:$/, ''));
    if (depth === 0) break;
  }
  return names;
}

function commentAbove(lines: readonly string[], index: number): string {
  let first = index - 1;
  if (!(lines[first] ?? '').trim().endsWith('*/')) return '';
  while (!(lines[first] as string).trim().startsWith('/**')) first -= 1;
  return lines
    .slice(first, index)
    .map((line) =>
      line
        .trim()
        .replace(/^\/?\*+\/?/, '')
        .replace(/\*\/$/, '')
        .trim(),
    )
    .join(' ')
    .trim();
}
