// Mistakes of the command line end with exit code 2 in one line that names the flag, before any process starts or listens.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { cudaDeviceCount } from '#lib/device/cuda/cuda-context.js';
import { exitCodes } from '#lib/programs/cli/exit-codes.js';
import { isWhole } from '../support/extent.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));

function weftline(args: readonly string[], variables: Readonly<Record<string, string>> = {}) {
  const env = { ...process.env, WEFTLINE_TOKEN: '', ...variables };
  return spawnSync(process.execPath, [main, ...args], { encoding: 'utf8', timeout: 600_000, env });
}

const mistakes: readonly (readonly [line: string, words: RegExp])[] = [
  ['bench ep --ranks 2 --hosts 9', /WL_CONFIG: Invalid --hosts: expected 1 to 2, as this machine has 2 ranks, got "9"/],
  ['bench ep --ranks 2 --hosts many', /WL_CONFIG: Invalid --hosts: expected a number of hosts/],
  ['bench ep --timeout 0', /WL_CONFIG: Invalid --timeout: expected a number of ms from 1 to/],
  ['bench ep --hidden 12', /WL_INVALID_ARGUMENT: Invalid --hidden: expected a multiple of 8, got 12/],
  ['bench ep --ranks 2 --experts 4 --topk 5', /Invalid --topk: expected 1 to 4, got 5/],
  ['bench ep --device cpu --sms 8', /--sms is for GPUs/],
  ['bench ep --device cpu --skew 11', /Invalid --skew: expected 0 to 10, got 11/],
  ['bench collectives --min 6', /Invalid --min: expected a multiple of the 4 bytes of an element of f32, got 6/],
  ['bench collectives --min 64 --max 32', /Invalid --min: expected at most --max/],
  ['bench collectives --operations reduce,allReduce,reduce', /'--operations <list>'.*reduce stands there again/],
  ['bench collectives --sms 4', /Invalid --sms: expected nothing without --device cuda, as it is for GPUs, got 4/],
  ['bench collectives --device cpu --copy-engines', /Invalid --copy-engines: expected nothing without --device cuda/],
  ['bench collectives --no-register', /Invalid --no-register: expected nothing without --device cuda/],
  ['bench collectives --piece-bytes 1M', /Invalid --piece-bytes: expected nothing without --device cuda/],
  [
    'bench collectives --tune t.json --operations reduce',
    /'--tune <file>' cannot be used with .*'--operations <list>'/,
  ],
  ['bench collectives --dtype bf16 --compare mpi', /Invalid --dtype: expected f32 or i32 with --compare mpi/],
  ['bench sparse --block-size 100', /Invalid --block-size: expected a multiple of 64, got 100/],
  ['bench sparse --message-size 1000', /Invalid --message-size: expected a multiple of --block-size, 256, up to 65536/],
  ['bench sparse --fan-in 1', /Invalid --fan-in: expected 0, or 2 and more, got 1/],
  ['bench sparse --fan-in 2', /Invalid --fan-in: expected a larger one, or --aggregators 3, for 4 workers, got 2/],
  ['bench ep --mode low-latency --tokens 1000000', /Invalid --tokens: expected at most 599186 of 7168 elements/],
  ['bench p2p --role client --blocks 8K,4K', /'--blocks <first,last>'.* Expected one value, or the first and the last/],
  ['bench p2p --role client --blocks 4K --batches 1,2,3', /'--batches <first,last>'.* Expected one value, or the/],
  ['bench transport --role server --rails nosuch', /Invalid --rails: expected interfaces of this host that have an/],
  ['bench transport --role server --pin none', /Invalid --pin: expected numbers of cores and ranges of them/],
  ['bench transport --role server --rdma-gid-index v2', /Invalid --rdma-gid-index: expected a whole number, the index/],
  ['bench transport --perftype incast --nflow 1024 --nmsg 64', /Invalid --nflow \* --nmsg \* --nreq: expected at most/],
  ['bench transport --role client --peer-ip 0.0.0.0', /Invalid --peer-ip: expected the address of one host/],
  ['bench unpack --total 100K', /Invalid --total: expected a multiple of the chunk/],
  ['bench unpack --device cpu --sms 4', /Invalid --sms: expected none/],
  ['moe -n 3', /Invalid --ranks: expected a divisor of the/],
  ['moe --hosts 5', /Invalid --hosts: expected 1 to 4, as this machine has 4 ranks, got "5"/],
  ['moe --timeout abc', /Invalid --timeout: expected a number of ms/],
  ['run -n 2 --hosts 3 missing.js', /Invalid --hosts: expected 1 to 2/],
  ['run -n 2 --metrics nowhere missing.js', /Invalid --metrics: expected HOST:PORT, such as 127\.0\.0\.1:9400/],
  ['run -n 2 --log loud missing.js', /Invalid --log: expected debug, info, warn, off, or one of them/],
  ['2proc --handles 32', /Invalid --level: expected warp with --handles 32/],
  ['bench transport --role server --segment 64K', /--segment .*Expected 0 or a size from 512 bytes to 65472 bytes/],
  ['bench transport --role server --segment 256', /--segment .*Expected 0 or a size from 512 bytes to 65472 bytes/],
  ['sim permutation --paths 4 --fail-path 4', /Invalid --fail-path: expected a path from 0 to 3, got 4/],
  ['sim incast --fail-path 0 --recover-at 5', /Invalid --recover-at: expected a time after --fail-at, 1000, got 5/],
  ['sim incast --rails 2 --fail-rail 2', /Invalid --fail-rail: expected a rail from 0 to 1, got 2/],
  ['sim ep --hidden 9', /Invalid --hidden: expected a multiple of 8, got 9/],
  ['sim ep --count 2 --seed 3 --hosts 5', /'--count <n>' cannot be used with option '--hosts <n>'/],
  ['doctor --rdma --rdma-devices a:b', /Invalid --rdma-devices: expected/],
];

function commandOf(line: string): string {
  return line.split(' -')[0]!;
}

/** The gate has one mistake of each command. */
function isFirst([line]: (typeof mistakes)[number]): boolean {
  return mistakes.find(([other]) => commandOf(other) === commandOf(line))?.[0] === line;
}

test('a wrong command line ends with 2 and names the flag', () => {
  for (const [line, words] of mistakes.filter((mistake) => isWhole || isFirst(mistake))) {
    const { status, stdout, stderr } = weftline(line.split(' '));
    // Where libibverbs is missing nobody reads what it would be asked for.
    if (status === exitCodes.failure.code && stderr.includes('RDMA cannot be used')) continue;
    assert.equal(status, exitCodes.usage.code, `${line}: ${stderr}`);
    assert.match(stderr, words, line);
    assert.equal(stdout, '', line);
    assert.doesNotMatch(stderr, /WEFTLINE_|\n {4}at /, line);
  }
});

test('what a command line cannot mean is shown without what terminals act upon', () => {
  for (const args of [['\u001b[2J'], ['sim', 'ep', '--hosts', '\u001b[2J']]) {
    const { status, stderr } = weftline(args);
    assert.equal(status, exitCodes.usage.code);
    assert.match(stderr, /'\\u001b\[2J'/);
    assert.ok(!stderr.includes('\u001b'));
  }
});

test('help tells the default of the command, where it is not that of the setting', () => {
  assert.match(weftline(['2proc', '--help']).stdout, /--timeout <ms>[^-]*Default: 30000\./);
});

test('a wrong variable ends with 1 and is named as the user set it', () => {
  for (const [variable, value] of [
    ['WEFTLINE_HOSTS', '9'],
    ['WEFTLINE_TIMEOUT_MS', 'soon'],
  ] as const) {
    const { status, stderr } = weftline(['bench', 'ep', '--ranks', '2'], { [variable]: value });
    assert.equal(status, exitCodes.failure.code);
    assert.match(stderr, new RegExp(`WL_CONFIG: Invalid setting .*${variable}.*got "?${value}`));
  }
});

const skip = cudaDeviceCount() > 0 && 'this machine has a GPU';

test('both sides of bench p2p fail at once where memory of a GPU is asked for and there is none', { skip }, () => {
  for (const role of ['server', 'client']) {
    const { status, stdout, stderr } = weftline(['bench', 'p2p', '--role', role, '--device', 'gpu']);
    assert.equal(status, exitCodes.failure.code, stderr);
    assert.match(stderr, /WL_UNSUPPORTED: Cannot run on a GPU: this machine has no GPU.*--device cpu/);
    assert.doesNotMatch(stdout, /listening/);
  }
});
