// Makes dist/types: the declarations that users of the package see. They are what the package's entries reach once
// everything marked @internal is gone; a declaration that no entry reaches is left out, whatever its file exports.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';

const bodyPattern = /^\s*(?:export\s+)?(?:declare\s+)?(?:abstract\s+)?(?:class|interface)\b/;
const identifierPattern = /[A-Za-z_$][\w$]*/g;

/** Comments and strings, which hold no names; each is replaced by blanks, so that places stay. */
function withoutText(code) {
  return code.replaceAll(/\/\*[^]*?\*\/|\/\/[^\n]*|(['"`])(?:\\.|(?!\1)[^\\])*\1/g, (text) =>
    text.replaceAll(/[^\n]/g, ' '),
  );
}

/**
 * The statements of a declaration file, or the members of a class, each with the comments before it. Classes and
 * interfaces end with their brace, all others with a semicolon outside of brackets.
 */
function* statements(text) {
  const code = withoutText(text);
  let start = 0;
  while (code.slice(start).trim() !== '') {
    const endsWithBrace = bodyPattern.test(code.slice(start));
    let depth = 0;
    let end = start;
    for (; end < code.length; end += 1) {
      const character = code[end];
      if ('{([<'.includes(character)) depth += 1;
      // The arrow of a function type closes nothing.
      if ('})]>'.includes(character) && code[end - 1] !== '=') depth -= 1;
      if (depth === 0 && (character === ';' || (endsWithBrace && character === '}'))) break;
    }
    yield text.slice(start, end + 1);
    start = end + 1;
  }
}

function isInternal(text) {
  return text.slice(0, withoutText(text).search(/\S/)).includes('@internal');
}

/** Without internal members. A class whose constructor is one can only be made by the library; abstract ones have subclasses. */
function withoutInternalMembers(text) {
  const code = withoutText(text);
  if (!bodyPattern.test(code)) return text;
  // The body is the last bracket that opens at depth 0.
  let depth = 0;
  let open = code.length - 1;
  for (; open >= 0; open -= 1) {
    if (code[open] === '}') depth += 1;
    if (code[open] === '{') depth -= 1;
    if (depth === 0) break;
  }
  const access = /^\s*(?:export\s+)?(?:declare\s+)?abstract\b/.test(code) ? 'protected' : 'private';
  const kept = [];
  for (const member of statements(text.slice(open + 1, -1))) {
    if (!isInternal(member)) kept.push(member);
    else if (withoutText(member).trim().startsWith('constructor(')) kept.push(`\n    ${access} constructor();`);
  }
  return `${text.slice(0, open + 1)}${kept.join('')}\n}`;
}

/** The names of `{ a, type b as c }`: outside, inside, and the words as they stand. */
function namesOf(list) {
  return list
    .split(',')
    .map((words) => words.trim())
    .filter((words) => words !== '')
    .map((words) => {
      const [name, alias = name] = words.replace(/^type\s+/, '').split(/\s+as\s+/);
      return { name, alias, words };
    });
}

function declarationPath(from, specifier) {
  return join(dirname(from), specifier.replace(/\.ts$/, '.d.ts'));
}

/** One declaration file: what it declares, imports and hands on, by name. */
class DeclarationFile {
  declared = new Map();
  /** Names of other files, by the name that they have here. */
  imported = new Map();
  reached = new Set();

  constructor(root, path) {
    this.path = path;
    for (const text of statements(readFileSync(join(root, path), 'utf8'))) {
      if (!isInternal(text)) this.#read(withoutInternalMembers(text));
    }
  }

  #read(text) {
    const code = withoutText(text).trim();
    const list = /^(?:import|export)\b[^{]*\{([^]*?)\}/.exec(code)?.[1];
    const specifier = /\bfrom\s+['"]([^'"]+)['"]\s*;$/.exec(text.trim())?.[1];
    if (specifier !== undefined) {
      const whole = /^import(?:\s+type)?\s+(?:\*\s+as\s+)?([\w$]+)/.exec(code)?.[1];
      if (list === undefined) this.imported.set(whole, { specifier, name: '*' });
      const prefix = /^(?:import|export)\s+type\b/.test(code) ? 'type ' : '';
      for (const { name, alias, words } of namesOf(list ?? '')) {
        this.imported.set(alias, { specifier, name, words: prefix + words });
      }
      return;
    }
    if (/^export\s*\{\s*\}/.test(code)) return;
    const name =
      /^(?:export\s+)?(?:declare\s+)?(?:abstract\s+)?(?:const|function|class|interface|type)\s+([\w$]+)/.exec(
        code,
      )?.[1];
    if (name === undefined) throw new Error(`${this.path}: a statement of an unknown form: ${text.trim()}`);
    // Overloads share a name.
    this.declared.set(name, [...(this.declared.get(name) ?? []), text]);
  }

  /** Names of this file that a declaration of it uses. That a class implements an interface uses nothing. */
  uses(name) {
    const code = this.declared.get(name).map((text) => withoutText(text).replace(/\bimplements\b[^{]*\{/, '{'));
    const names = new Set(code.join('\n').match(identifierPattern));
    return [...names].filter((other) => other !== name && (this.declared.has(other) || this.imported.has(other)));
  }

  /** What of the file was reached. */
  text(isEntry) {
    const parts = [];
    const lists = new Map();
    for (const [alias, { specifier, words }] of this.imported) {
      if (this.reached.has(alias)) lists.set(specifier, [...(lists.get(specifier) ?? []), words]);
    }
    for (const [specifier, words] of lists) {
      // Sources import each other as .ts, which the compiler keeps in declarations.
      const from = specifier.replace(/\.ts$/, '.js');
      parts.push(`${isEntry ? 'export' : 'import'} { ${words.join(', ')} } from '${from}';\n`);
    }
    for (const [name, texts] of this.declared) {
      if (this.reached.has(name)) parts.push(...texts.map((text) => this.#withReached(text)));
    }
    const code = parts.join('').trim();
    // Projects need neither the library of a browser nor @types/node for these.
    const disposal = /\bSymbol\.(?:asyncDispose|dispose)\b|Disposable\b/.test(withoutText(code));
    const signal = /\bAbortSignal\b/.test(withoutText(code));
    return [
      disposal ? '/// <reference lib="esnext.disposable" />\n' : '',
      `${code}\nexport {};\n`,
      signal ? 'declare global {\n    interface AbortSignal {}\n}\n' : '',
    ].join('');
  }

  /** Without interfaces that nobody reaches: a class of declarations need not name what it implements. */
  #withReached(text) {
    return text.replace(/ implements ([^{]*) \{/, (_, list) => {
      const kept = list
        .split(/,\s*(?![^<]*>)/)
        .map((part) => part.trim())
        .filter((part) => {
          const [name] = part.match(identifierPattern);
          return this.reached.has(name) || !(this.declared.has(name) || this.imported.has(name));
        });
      return kept.length === 0 ? ' {' : ` implements ${kept.join(', ')} {`;
    });
  }
}

/** All that the entries reach, by file. */
function reach(root, entries) {
  const files = new Map();
  const waiting = [];
  const open = (path) => {
    if (!files.has(path)) {
      const file = new DeclarationFile(join(root, 'dist'), path);
      files.set(path, file);
    }
    return files.get(path);
  };
  for (const path of entries) {
    const entry = open(path);
    for (const name of [...entry.imported.keys(), ...entry.declared.keys()]) waiting.push({ path, name });
  }
  while (waiting.length > 0) {
    const { path, name } = waiting.pop();
    const file = open(path);
    if (file.reached.has(name)) continue;
    file.reached.add(name);
    if (file.declared.has(name)) {
      for (const other of file.uses(name)) waiting.push({ path, name: other });
    } else {
      const from = file.imported.get(name);
      if (from === undefined) throw new Error(`${path} has no declaration of ${name}`);
      if (!from.specifier.startsWith('.')) throw new Error(`${path}: ${name} of ${from.specifier} would be public`);
      waiting.push({ path: declarationPath(path, from.specifier), name: from.name });
    }
  }
  return files;
}

/** `root`: the repository. `entries`: the declarations that package.json's exports name, relative to dist/types. */
export function packageTypes(root, entries) {
  const target = join(root, 'dist/types');
  const files = reach(root, entries);
  removeAllBut(target, files);
  for (const [name, file] of files) {
    const path = join(target, name);
    const text = file.text(entries.includes(name));
    if (existsSync(path) && readFileSync(path, 'utf8') === text) continue;
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
  }
}

function removeAllBut(folder, wanted) {
  if (!existsSync(folder)) return;
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    if (entry.isFile() && !wanted.has(relative(folder, path))) rmSync(path);
  }
}
