// Builds the documentation site into build/site: the pages of docs/, and API pages from the declarations of the package.
// Needs a build of the library; what builds the site is installed into site/ by its lock file where it is missing.
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, posix, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
/** Below site/, where its tools are found. */
const source = join(root, 'site/pages');
const repository = 'https://github.com/weftline/weftline/blob/main/';
/** Pages of the root of the repository that the site has too. */
const rootPages = ['CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md'];
const { exports } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));

function run(folder, program, ...args) {
  const { status } = spawnSync(program, args, { cwd: join(root, folder), stdio: 'inherit' });
  if (status !== 0) {
    console.error(`site: ${program} ${args.join(' ')} failed`);
    process.exit(1);
  }
}

/** Where a file of the repository stands on the site, if it does. */
function placeOf(path) {
  if (path === 'docs/README.md') return 'index.md';
  if (rootPages.includes(path)) return path;
  if (path.startsWith('docs/') && /\.(?:md|svg)$/.test(path)) return path.slice('docs/'.length);
  return undefined;
}

/** A link from a page of the repository, as it must be on the site. */
function linkOnSite(link, from) {
  if (link.startsWith('#') || (/^[a-z]+:/.test(link) && !link.startsWith(repository))) return link;
  const [path, anchor] = (
    link.startsWith(repository) ? link.slice(repository.length) : posix.join(posix.dirname(from), link)
  ).split('#');
  const hash = anchor === undefined ? '' : `#${anchor}`;
  const place = placeOf(path);
  if (place === undefined) return `${repository}${path}${hash}`;
  const way = posix.relative(posix.dirname(placeOf(from)), place);
  return `${way.startsWith('.') ? '' : './'}${way}${hash}`;
}

/** Without comments, which would be shown, and with links that work on the site. Code is left as it is. */
function pageOnSite(text, from) {
  return text
    .split(/(^ *```[\s\S]*?^ *```$)/m)
    .map((part) =>
      /^ *```/.test(part)
        ? part
        : part
            .replaceAll(/<!--[\s\S]*?-->\n?/g, '')
            .replaceAll(/(?<=\]\()[^()\s]+(?=\))/g, (link) => linkOnSite(link, from)),
    )
    .join('');
}

function copyPages() {
  const pages = readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' }).filter((name) =>
    name.endsWith('.md'),
  );
  for (const path of [...pages.map((name) => `docs/${name}`), ...rootPages]) {
    const to = join(source, placeOf(path));
    mkdirSync(dirname(to), { recursive: true });
    writeFileSync(to, pageOnSite(readFileSync(join(root, path), 'utf8'), path));
  }
  cpSync(join(root, 'docs/pictures'), join(source, 'pictures'), { recursive: true });
}

function makeApiPages() {
  const entries = Object.values(exports).flatMap(({ types }) =>
    types === undefined ? [] : ['--entryPoints', join(root, types)],
  );
  run('site', process.execPath, 'node_modules/typedoc/bin/typedoc', '--options', 'typedoc.json', ...entries);
}

/** The menu beside the pages: the lists of docs/README.md, and the modules of the API. */
function makeMenus() {
  const text = readFileSync(join(source, 'index.md'), 'utf8');
  const menus = text
    .split(/^## /m)
    .slice(1)
    .map((section) => {
      const [title] = section.split('\n');
      const items = [...section.matchAll(/\[([^\]]+)\]\(\.\/([^)#]+)\.md\)/g)].map(([, name, path]) => ({
        text: name,
        link: `/${path}`,
      }));
      return { text: title, collapsed: title === 'Benchmarks', items };
    });
  const modules = readdirSync(join(source, 'api'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('/index.md'))
    .map((name) => posix.dirname(name))
    .toSorted((one, other) => Number(other === 'index') - Number(one === 'index') || one.localeCompare(other));
  const api = modules.map((name) => ({ text: `weftline${name === 'index' ? '' : `/${name}`}`, link: `/api/${name}/` }));
  menus.splice(2, 0, { text: 'API', collapsed: true, items: [{ text: 'All entries', link: '/api/' }, ...api] });
  writeFileSync(join(source, 'menus.json'), JSON.stringify(menus, undefined, 2));
}

/** A reader's browser asks nobody but the site: no fonts, scripts or images of others. */
function checkRequests() {
  const folder = join(root, 'build/site');
  for (const name of readdirSync(folder, { recursive: true, encoding: 'utf8' })) {
    if (!/\.(html|css)$/.test(name)) continue;
    const text = readFileSync(join(folder, name), 'utf8');
    const found =
      /<(?:script|link|img|iframe|source|video)\b[^>]*\s(?:src|href|srcset)="(?:https?:)?\/\/[^"]*"/.exec(text) ??
      (name.endsWith('.css') ? /(?:url\(|@import\s)["']?(?:https?:)?\/\/[^)"';]*/.exec(text) : null);
    if (found === null) continue;
    console.error(`site: ${name} asks another site: ${found[0]}`);
    process.exit(1);
  }
}

if (!existsSync(join(root, 'dist/types/index.d.ts'))) {
  console.error('site: the library is not built: run npm run build');
  process.exit(1);
}
if (!existsSync(join(root, 'site/node_modules/vitepress'))) run('site', 'npm', 'ci', '--ignore-scripts', '--silent');
rmSync(source, { recursive: true, force: true });
mkdirSync(source, { recursive: true });
copyPages();
makeApiPages();
makeMenus();
run('site', process.execPath, 'node_modules/vitepress/bin/vitepress.js', 'build', '.');
checkRequests();
console.log(`site: ${relative(process.cwd(), join(root, 'build/site'))}/index.html`);
