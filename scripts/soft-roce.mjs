// Runs a command in a small guest that has RDMA devices (soft-RoCE): npm run soft-roce -- [options] COMMAND [ARGUMENT]...
// Node and this folder are the same inside; what the command writes is lost, but for its output and exit status.
import { homedir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { GuestError, runInGuest } from './soft-roce/guest.mjs';
import { packages, whyNotSoftRoce } from './soft-roce/packages.mjs';

const FAILED = 125;

const options = {
  /** Two devices at the ends of a wire, rxe0 (10.77.0.1) and rxe1 (10.77.0.2), in place of one on the loopback device. */
  pair: { type: 'boolean', default: false },
  /** What the wire does to packets of either direction, as tc-netem has it: "loss 1%", "delay 1ms loss 5%". */
  netem: { type: 'string' },
  /** Seconds from the start of the guest to its end. */
  timeout: { type: 'string', default: '300' },
  memory: { type: 'string', default: '4G' },
  processors: { type: 'string', default: '2' },
  /** Folder for the kernel that is downloaded; in WEFTLINE_SOFT_ROCE_CACHE too. */
  cache: { type: 'string' },
  /** Prints the Debian packages that the guest needs. */
  packages: { type: 'boolean', default: false },
  /** Prepares everything and boots nothing. Fails with a reason where there can be no guest. */
  prepare: { type: 'boolean', default: false },
  /** Fails unless everything has been prepared; downloads and boots nothing. */
  'is-prepared': { type: 'boolean', default: false },
};

async function main() {
  const { values, words } = readArguments();
  if (values.packages) {
    console.log(packages.join('\n'));
    return 0;
  }
  const why = whyNotSoftRoce();
  if (why !== undefined) throw new GuestError(`There can be no guest here: ${why}`);
  const cacheHome = process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache');
  const cache = values.cache ?? process.env['WEFTLINE_SOFT_ROCE_CACHE'] ?? join(cacheHome, 'weftline/soft-roce');
  if (values['is-prepared']) {
    const { requireKernel } = await import('./soft-roce/kernel.mjs');
    requireKernel(cache);
    return 0;
  }
  if (values.prepare) {
    const { prepareKernel } = await import('./soft-roce/kernel.mjs');
    console.log(prepareKernel(cache));
    return 0;
  }
  if (words.length === 0)
    throw new GuestError('What is to run in the guest? npm run soft-roce -- COMMAND [ARGUMENT]...');
  if (values.netem !== undefined && !values.pair)
    throw new GuestError('--netem needs --pair: the loopback device is no wire');
  const timeoutMs = Number(values.timeout) * 1000;
  if (!(timeoutMs > 0)) throw new GuestError(`Invalid --timeout: expected seconds, got ${values.timeout}`);
  return runInGuest(words, {
    cache,
    links: values.pair ? 'pair' : 'one',
    netem: values.netem,
    timeoutMs,
    memory: values.memory,
    processors: values.processors,
    stdout: process.stdout,
    stderr: process.stderr,
  });
}

/** Options end at the first word that is none, so that those of the command need no "--". */
function readArguments() {
  const all = process.argv.slice(2);
  const takesValue = (word) =>
    word.startsWith('--') && !word.includes('=') && options[word.slice(2)]?.type === 'string';
  let end = 0;
  while (end < all.length && all[end].startsWith('--') && all[end] !== '--') end += takesValue(all[end]) ? 2 : 1;
  const { values } = parseArgs({ args: all.slice(0, end), options });
  return { values, words: all[end] === '--' ? all.slice(end + 1) : all.slice(end) };
}

try {
  process.exitCode = await main();
} catch (error) {
  console.error(`soft-roce: ${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = FAILED;
}
