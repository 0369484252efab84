// Runs the compiled tests with node's own runner. Arguments: parts of file names to run (default: the gate, which is all but
// the files that are left to the nightly run); --all for every file; --apart for a process per file; --watch etc. go to node.
// The gate repeats each file that failed, alone and once. What passes then is listed last, as unsteady.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { basename } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const root = fileURLToPath(new URL('../build/test', import.meta.url));
/**
 * What only the nightly run has: packages that are installed, browsers, and what takes minutes to look for rare faults. Tests of
 * GPUs are asked for by name where there are some.
 */
const NIGHTLY = [
  'fresh/',
  'gpu/',
  'hostile/chaos',
  'hostile/middlebox',
  'local/ep-killed',
  'local/ep-loss',
  'local/ep-stopped',
  'local/report-chromium',
  'local/thread-exit',
  'rdma/ucx',
];
const own = ['--apart', '--all'];
const isApart = process.argv.includes('--apart');
const hasAll = process.argv.includes('--all');
const options = process.argv.slice(2).filter((word) => word.startsWith('--') && !own.includes(word));
const wanted = process.argv.slice(2).filter((word) => !word.startsWith('--'));
const isGate = wanted.length === 0 && !hasAll;
const isWanted = (name) =>
  isGate ? !NIGHTLY.some((part) => name.startsWith(part)) : hasAll || wanted.some((part) => name.includes(part));
const files = readdirSync(root, { recursive: true })
  .filter((name) => name.endsWith('.test.js') && isWanted(name))
  .toSorted()
  .map((name) => `${root}/${name}`);
if (files.length === 0) {
  console.error(`No test file matches ${wanted.join(', ')} under ${root}`);
  process.exit(1);
}
/**
 * A test or a file that takes longer hangs, for instance because a failed test left something open. Files whose cases
 * WEFTLINE_TEST_EP multiplies may take as many times as long, and so may those of a guest that runs all of its tests.
 */
const factors = [Number(process.env.WEFTLINE_TEST_EP ?? 1), process.env.WEFTLINE_TEST_RDMA === 'all' ? 3 : 1];
const MAX_TEST_MS = 1_800_000 * Math.max(1, ...factors);
/** Time of waits that are given none: on a busy machine processes may start, or get a processor, long after others. */
const PATIENT_MS = '120000';
/** Many tests wait for other processes: one more than processors. */
const concurrency = availableParallelism() + 1;
const flags = ['--test', `--test-concurrency=${concurrency}`, `--test-timeout=${MAX_TEST_MS}`];
/** What a terminal shows well, else what programs read; then a summary. */
const reporters = [process.stdout.isTTY ? 'spec' : 'tap', fileURLToPath(new URL('test-summary.mjs', import.meta.url))];
for (const reporter of reporters) flags.push(`--test-reporter=${reporter}`, '--test-reporter-destination=stdout');
// One seed for all files, also where it is random.
const { seed } = await import(new URL('../build/test/support/seed.js', import.meta.url).href);
console.log(`# WEFTLINE_TEST_SEED=${seed}`);

/** Tests that start nothing share processes, which spares a start of node and of the library per file. */
const sharing = ['unit/', 'property/'];
/**
 * Files among these that test what there is once in a process: metrics, calls, traces, variables, how native functions are bound, all
 * sockets, and the garbage that code leaves, which is compiled otherwise after other tests; and files with hooks, which may run
 * before the next file has loaded.
 */
const ownProcess = [
  'unit/collectives/communicator.test',
  'unit/core/waits',
  'unit/device/cuda/kernel-trace',
  'unit/device-api/service/',
  'unit/meeting/dial',
  'unit/metrics/',
  'unit/native/',
  'unit/transport/transport-memory',
  'unit/world/world.test',
];
const startsWithOne = (file, parts) => parts.some((part) => file.startsWith(`${root}/${part}`));
/** Processes that are shared, on each machine the same files. */
const GROUPS = 4;

/**
 * The tests of one file run while the next ones load. A file that cannot be loaded is a failed test: node would otherwise tell
 * the error as one that came after the end of the tests.
 */
const loadAll = `async function loadAll(files) {
  // While a file waits for what keeps no loop alive (WebAssembly that compiles), the tests before it may all have ended: the
  // runner would take that for the end, and run what files do after their tests.
  const alive = setInterval(() => {}, 1000);
  for (const file of files) {
    try {
      await import(file);
    } catch (error) {
      void test('loading ' + file, () => { throw error; });
    }
  }
  clearInterval(alive);
}`;

/** Writes files that import those of each group. Node runs files in the order of names: `when` comes before or behind "test". */
function groupFiles(when, groups) {
  const folder = fileURLToPath(new URL(`../build/${when}/${process.pid}`, import.meta.url));
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
  mkdirSync(folder, { recursive: true });
  return groups.flatMap((group, index) => {
    if (group.length === 0) return [];
    const path = `${folder}/${index}.mjs`;
    const names = group.map((file) => JSON.stringify(pathToFileURL(file).href)).join(',\n  ');
    writeFileSync(path, `import test from 'node:test';\n${loadAll}\nawait loadAll([\n  ${names},\n]);\n`);
    return path;
  });
}

/** Takes longest by far, on one processor: were it begun last, the others would have nothing left to do meanwhile. */
const LONGEST = 'rdma/verbs.test';

const together = isApart
  ? []
  : files.filter((file) => startsWithOne(file, sharing) && !startsWithOne(file, ownProcess));
const hooked = together.find((file) => /^(?:after|before)\(/m.test(readFileSync(file, 'utf8')));
if (hooked !== undefined) throw new Error(`${hooked} has hooks, so it must be in ownProcess of scripts/test.mjs`);
const ahead = isApart ? [] : files.filter((file) => startsWithOne(file, [LONGEST]));
const apart = files.filter((file) => !together.includes(file) && !ahead.includes(file));
const shares = Array.from({ length: GROUPS }, (_, group) => together.filter((_file, at) => at % GROUPS === group));
const words = [...groupFiles('ahead', [ahead]), ...apart, ...groupFiles('together', shares)];
const failedPath = fileURLToPath(new URL(`../build/failed-${process.pid}.json`, import.meta.url));
process.on('exit', () => rmSync(failedPath, { force: true }));

/** Runs files of tests; returns the exit status, and by file what failed, as far as the reporter came. */
function run(paths) {
  rmSync(failedPath, { force: true });
  const { status } = spawnSync(process.execPath, [...flags, ...options, ...paths], {
    stdio: 'inherit',
    env: {
      WEFTLINE_TIMEOUT_MS: PATIENT_MS,
      ...process.env,
      WEFTLINE_TEST_SEED: String(seed),
      WEFTLINE_TEST_FAILED: failedPath,
    },
  });
  const failed = existsSync(failedPath) ? JSON.parse(readFileSync(failedPath, 'utf8')) : {};
  return { status, failed };
}

/** More files than this do not fail by chance: they are not repeated. */
const MAX_REPEATED = 8;

/** The files of tests in which a test of this file ran: those that import it, where it is none itself. */
function filesOf(file) {
  if (files.includes(file)) return [file];
  const ending = `/${basename(file)}'`;
  return files.filter((candidate) => readFileSync(candidate, 'utf8').includes(ending));
}

/** What failed, by the file of tests that is to be repeated. Undefined if that is not known of all. */
function byTestFile(failed) {
  const told = {};
  for (const [file, lines] of Object.entries(failed)) {
    const found = filesOf(file);
    if (found.length === 0) return undefined;
    for (const name of found) told[name] = (told[name] ?? '') + lines;
  }
  return told;
}

/** Repeats each failed file alone; returns whether all of them passed, and tells which are unsteady. */
function passWhenRepeated(failures) {
  const failed = byTestFile(failures) ?? {};
  const names = Object.keys(failed);
  if (names.length === 0 || names.length > MAX_REPEATED) return false;
  const lasting = names.filter((file) => {
    console.log(`\n# repeating ${file.slice(root.length + 1)} alone`);
    return run([file]).status !== 0;
  });
  const unsteady = names.filter((file) => !lasting.includes(file));
  if (unsteady.length > 0) {
    console.log(`\nunsteady (failed, and passed when repeated alone; each is a fault), WEFTLINE_TEST_SEED=${seed}:`);
    for (const file of unsteady) console.log(failed[file].trimEnd());
  }
  if (lasting.length > 0) console.log('\nfailed:');
  for (const file of lasting) console.log(failed[file].trimEnd());
  return lasting.length === 0;
}

const { status, failed } = run(words);
process.exit(status === 0 || (isGate && passWhenRepeated(failed)) ? 0 : 1);
