// What the package ships: small, nothing that only a clone needs, and no link that leads nowhere.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';

interface Packed {
  readonly files: readonly { readonly path: string }[];
}

const root = fileURLToPath(new URL('../../..', import.meta.url));
/** How shipped documents name files of the repository that do not ship. */
const repository = 'https://github.com/weftline/weftline/blob/main/';

const [packed] = JSON.parse(npm('pack', '--dry-run', '--ignore-scripts', '--json')) as [Packed];
const shipped = packed.files.map(({ path }) => path);

function npm(...args: readonly string[]): string {
  const { status, stdout, stderr } = spawnSync('npm', args, { cwd: root, encoding: 'utf8' });
  assert.equal(status, 0, stderr);
  return stdout;
}

function linksOf(path: string): string[] {
  const text = readFileSync(join(root, path), 'utf8').replaceAll(/^(```|~~~)[^]*?^\1/gm, '');
  return [...text.matchAll(/\]\(([^)\s]+)/g), ...text.matchAll(/\b(?:href|src)="([^"]+)"/g)].map(
    (match) => match[1] as string,
  );
}

function withoutFragment(link: string): string {
  return link.replace(/[#?].*$/, '');
}

test('every relative link in a shipped document leads to a shipped file', () => {
  const documents = shipped.filter((path) => path.endsWith('.md'));
  assert.ok(documents.includes('README.md'));
  const broken = documents.flatMap((path) =>
    linksOf(path)
      .filter((link) => !/^(?:[a-z]+:|#)/.test(link))
      .filter((link) => {
        const target = normalize(join(dirname(path), withoutFragment(link)));
        return !shipped.some((file) => file === target || file.startsWith(`${target.replace(/\/$/, '')}/`));
      })
      .map((link) => `${path}: ${link} does not ship: write ${repository}…`),
  );
  assert.deepEqual(broken, []);
});

test('every link to the repository leads to a file that it has', () => {
  const broken = shipped
    .filter((path) => path.endsWith('.md'))
    .flatMap((path) =>
      linksOf(path)
        .filter((link) => link.startsWith(repository))
        .filter((link) => !existsSync(join(root, withoutFragment(link.slice(repository.length)))))
        .map((link) => `${path}: ${link}`),
    );
  assert.deepEqual(broken, []);
});

test('the package ships what runs, declarations of what is public, and documents for users', () => {
  const expected =
    /^(?:LICENSE|package\.json|[A-Z]+\.md|docs\/.*\.md|docs\/pictures\/[a-z]+\.svg|dist\/types\/.*\.d\.ts|dist\/build\.json|dist\/.*\.js|dist\/.*\/chart-library\.js\.br|dist\/.*\/page-script\.mjs|dist\/kernels\/weftline\.wasm|dist\/kernels\/cuda\/.*\.cuh?|dist\/programs\/bench\/.*\/mpi-loop\.c)$/;
  assert.deepEqual(
    shipped.filter((path) => !expected.test(path)),
    [],
  );
});

test('shipped declarations show nothing that is internal', () => {
  const shown = shipped
    .filter((path) => path.endsWith('.d.ts'))
    .filter((path) => readFileSync(join(root, path), 'utf8').includes('@internal'));
  assert.deepEqual(shown, []);
});

test('no shipped program refers to a map', () => {
  const wrong = shipped
    .filter((path) => /\.(?:js|d\.ts)$/.test(path))
    .filter((path) => readFileSync(join(root, path), 'utf8').includes('\n//# sourceMappingURL='));
  assert.deepEqual(wrong, []);
});
