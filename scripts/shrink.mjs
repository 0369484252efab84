// Takes spaces and line ends out of the programs in dist/ before they are packed: a quarter of their size. Names stay and
// lines stay short, so that stack traces tell function and place. The next build writes them anew.
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { transform } from 'esbuild';

const dist = fileURLToPath(new URL('../dist/', import.meta.url));
/** Node prints the whole line of an error that nobody catches. */
const LINE_CHARACTERS = 120;

// Whatever happens below, what is there is not what a build has written.
rmSync(`${dist}.comments-removed`, { force: true });
const files = readdirSync(dist, { recursive: true, encoding: 'utf8' }).filter(
  (name) => name.endsWith('.js') && !name.startsWith('vendor/'),
);
let before = 0;
let after = 0;
await Promise.all(
  files.map(async (name) => {
    const text = readFileSync(dist + name, 'utf8');
    const { code } = await transform(text, {
      format: 'esm',
      target: 'node20.19',
      charset: 'utf8',
      minifyWhitespace: true,
      lineLimit: LINE_CHARACTERS,
      legalComments: 'none',
    });
    before += text.length;
    after += code.length;
    writeFileSync(dist + name, code);
  }),
);
console.log(`shrink: ${files.length} programs, ${before} characters before, ${after} after`);
