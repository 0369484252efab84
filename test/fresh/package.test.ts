// The package as users get it, from "npm pack" and from a git URL: installed into empty projects, it runs, type-checks,
// and works beside a bundler. Needs npm's registry or its cache.
import assert from 'node:assert/strict';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { cloneTree, freshProject, installTools, mustRun, tool } from './support/fresh-projects.ts';
import { openingProgram, typedProgram, wholeProgram } from './support/programs.ts';

const MAX_PACKED_BYTES = 1_350_000;
const MAX_INSTALLED_BYTES = 4_300_000;

const work = mkdtempSync(join(tmpdir(), 'weftline-fresh-'));
const clone = join(work, 'clone');
const esm = join(work, 'esm');
const cjs = join(work, 'cjs');
const git = join(work, 'git');
let tarball = '';

const esmFiles = {
  'package.json': '{ "private": true, "type": "module" }\n',
  'whole.mjs': wholeProgram,
  'typed.ts': typedProgram,
  'opening.mjs': openingProgram,
};
const cjsFiles = {
  'package.json': '{ "private": true }\n',
  'required.cjs': `const { toBf16 } = require('weftline');\nrequire('weftline/ep');\nconsole.log(toBf16(1));\n`,
  'imported.cjs': `import('weftline').then(({ toBf16 }) => console.log(toBf16(1)));\n`,
  'typed.cts': `import { toBf16 } from 'weftline';\nexport const one: number = toBf16(1);\n`,
  'typed-import.cts': `export const one: Promise<number> = import('weftline').then(({ toBf16 }) => toBf16(1));\n`,
};

before(async () => {
  await installTools();
  mkdirSync(clone);
  cloneTree(clone);
  await Promise.all([
    // Nothing is installed in the clone: packing installs what the build needs.
    mustRun(clone, 'npm', ['pack', '--silent']).then(async () => {
      tarball = join(clone, readdirSync(clone).find((name) => name.endsWith('.tgz')) as string);
      await freshProject(esm, esmFiles, ['--ignore-scripts', tarball]);
      await freshProject(cjs, cjsFiles, [tarball]);
    }),
    freshProject(git, esmFiles, [`git+file://${clone}`]),
  ]);
});

after(() => rmSync(work, { recursive: true, force: true }));

/** What of the package is installed in a project. */
const list = (folder: string) =>
  readdirSync(join(folder, 'node_modules/weftline'), { recursive: true, encoding: 'utf8' })
    .filter((name) => !name.startsWith('node_modules'))
    .toSorted();

/** Settings of a strict project without DOM or @types/node: what the package needs, it brings. */
const config = (module: string, moduleResolution: string, files: readonly string[]) => ({
  compilerOptions: {
    target: 'es2022',
    lib: ['es2022'],
    types: [],
    strict: true,
    exactOptionalPropertyTypes: true,
    noUncheckedIndexedAccess: true,
    isolatedModules: true,
    skipLibCheck: false,
    noEmit: true,
    module,
    moduleResolution,
  },
  files,
});

async function check(folder: string, version: string, settings: ReturnType<typeof config>): Promise<void> {
  const file = `tsconfig-${version}-${settings.compilerOptions.moduleResolution}.json`;
  writeFileSync(join(folder, file), JSON.stringify(settings));
  await mustRun(folder, process.execPath, [tool(`typescript-${version}/bin/tsc`), '-p', file, '--pretty', 'false']);
}

const bundle = (program: string, output: string, ...options: readonly string[]) =>
  mustRun(esm, process.execPath, [
    tool('esbuild/bin/esbuild'),
    program,
    '--bundle',
    '--platform=node',
    '--log-level=error',
    `--outfile=${output}`,
    ...options,
  ]);

/** The running Node, and those that the tools have for this machine. */
const runtimes = () => [
  process.execPath,
  ...['node-22/bin/node', 'node-24/bin/node', 'node-26/bin/node'].map(tool).filter((path) => existsSync(path)),
];

const bun = tool('@oven/bun-linux-x64/bin/bun');
const deno = tool('@deno/linux-x64-glibc/deno');

test('the package is small: npm packs programs that were shrunk', () => {
  const packed = statSync(tarball).size;
  const folder = join(esm, 'node_modules/weftline');
  const installed = list(esm).map((name) => statSync(join(folder, name)));
  const bytes = installed.reduce((sum, file) => sum + (file.isFile() ? file.size : 0), 0);
  assert.ok(packed < MAX_PACKED_BYTES && bytes < MAX_INSTALLED_BYTES, `${packed} bytes packed, ${bytes} installed`);
});

describe('installed from a tarball', { concurrency: 2 }, () => {
  test('it runs as a module on every version of Node, without install scripts', async () => {
    for (const node of runtimes()) assert.match(await mustRun(esm, node, ['whole.mjs']), /^all works$/m);
  });

  test('it runs in programs that Node takes from the command line', async () => {
    for (const node of runtimes()) {
      assert.match(await mustRun(esm, node, ['--input-type=module', '--eval', wholeProgram]), /^all works$/m);
    }
  });

  test('it is required and imported by CommonJS', async () => {
    for (const node of runtimes()) {
      for (const program of ['required.cjs', 'imported.cjs']) {
        assert.match(await mustRun(cjs, node, [program]), /^16256$/m);
      }
    }
  });

  test('it runs on Bun', async (context) => {
    if (!existsSync(bun)) return context.skip('there is no Bun for this machine');
    assert.match(await mustRun(esm, bun, ['whole.mjs']), /^all works$/m);
    assert.equal(
      (await mustRun(esm, 'npx', ['weftline', 'run', '-n', '2', '--', bun, 'whole.mjs'])).match(/all works/g)?.length,
      2,
    );
  });

  test('it runs on Deno', async (context) => {
    if (!existsSync(deno)) return context.skip('there is no Deno for this machine');
    const words = ['run', '-A', 'whole.mjs'];
    assert.match(await mustRun(esm, deno, words), /^all works$/m);
    const ranks = await mustRun(esm, 'npx', ['weftline', 'run', '-n', '2', '--', deno, ...words]);
    assert.equal(ranks.match(/all works/g)?.length, 2);
  });

  test('its command runs a block of its own without a file', async () => {
    const words = ['weftline', 'moe', '--ranks', '2', '--device', 'cpu', '--report', 'moe.html'];
    assert.match(await mustRun(esm, 'npx', words), /^PASSED/m);
    // The page stands alone: programs are packed in another form than a build gives them.
    const [, script = ''] =
      /<script type="module">([^]*?)<\/script>/.exec(readFileSync(join(esm, 'moe.html'), 'utf8')) ?? [];
    writeFileSync(join(esm, 'page.mjs'), script);
    await mustRun(esm, process.execPath, ['--check', 'page.mjs']);
    assert.match(script, /\S/);
    assert.doesNotMatch(script, /^\s*(?:import|export)\b/m);
  });

  test('its command starts ranks', async () => {
    const output = await mustRun(esm, 'npx', ['weftline', 'run', '-n', '2', 'whole.mjs']);
    assert.equal(output.match(/all works/g)?.length, 2);
  });
});

test('installed from a git URL it has what the tarball has', async () => {
  assert.match(await mustRun(git, process.execPath, ['whole.mjs']), /^all works$/m);
  assert.deepEqual(list(git), list(esm));
});

describe('declarations', { concurrency: 2 }, () => {
  for (const version of ['5.7', '5.9', '7']) {
    test(`TypeScript ${version}, modules`, async () => {
      await check(esm, version, config('nodenext', 'nodenext', ['typed.ts']));
      await check(esm, version, config('esnext', 'bundler', ['typed.ts']));
    });

    test(`TypeScript ${version}, CommonJS`, async () => {
      // Until 5.8 the compiler did not know that Node requires modules.
      const files = version === '5.7' ? ['typed-import.cts'] : ['typed.cts', 'typed-import.cts'];
      await check(cjs, version, config('nodenext', 'nodenext', files));
    });
  }

  test('publint and arethetypeswrong find nothing', async () => {
    await mustRun(clone, process.execPath, ['node_modules/publint/src/cli.js', tarball, '--strict']);
    const attw = tool('@arethetypeswrong/cli/dist/index.js');
    await mustRun(clone, process.execPath, [attw, tarball, '--profile', 'esm-only', '--no-emoji']);
  });
});

describe('bundlers', { concurrency: 2 }, () => {
  test('it works where a bundle leaves it out', async () => {
    await bundle('whole.mjs', 'out/external.mjs', '--format=esm', '--packages=external');
    assert.match(await mustRun(esm, process.execPath, ['out/external.mjs']), /^all works$/m);
  });

  for (const [format, output] of [
    ['esm', 'out/bundled.mjs'],
    ['cjs', 'out/bundled.cjs'],
  ] as const) {
    test(`inside a bundle (${format}) it says what to do`, async () => {
      await bundle('opening.mjs', output, `--format=${format}`);
      const said = (await mustRun(esm, process.execPath, [output])).trim().split('\n');
      assert.equal(said.length, 3);
      for (const line of said) assert.match(line, /^WL_UNSUPPORTED: .* was bundled into this program, .* external/);
    });
  }
});
