// What the ranks of an EpBuffer see when one of them dies, stays away, calls something else or passes nonsense.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import test, { before, describe } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type RankOutput, resultOf, runRanks, type RunRanksOptions } from './support/run-ranks.ts';
import { skipWithout } from './support/requirements.js';

interface Failure {
  readonly code: string;
  readonly message: string;
  readonly ms: number;
  readonly rank?: number;
}

function failureOf(output: RankOutput | undefined): Failure {
  return resultOf(output) as Failure;
}

const script = new URL('./ranks/ep-failure.js', import.meta.url);

function run(scenario: string, ranks: number, options: RunRanksOptions = {}): ReturnType<typeof runRanks> {
  return runRanks(ranks, script, { ...options, args: [scenario] });
}

test('kill -9 of one rank mid-dispatch fails the others at once, names it and leaves nothing behind', async () => {
  let jobId = '';
  const { exitCode, ranks, notices, transcript } = await run('loop', 4, {
    graceMs: 60_000,
    onLine: ({ rank, text }) => {
      const [, pid, job] = /^running (\d+) ([\w-]+)$/.exec(text) ?? [];
      if (rank !== 2 || pid === undefined || job === undefined) return;
      jobId = job;
      process.kill(Number(pid), 'SIGKILL');
    },
  });
  assert.notEqual(exitCode, 0, transcript);
  assert.ok(
    notices.some((text) => text.includes('rank 2')),
    notices.join('\n'),
  );
  for (const rank of [0, 1, 3]) {
    const failure = failureOf(ranks[rank]);
    assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(failure.code), transcript);
    assert.match(failure.message, /[Rr]ank 2\b/, transcript);
  }
  assert.notEqual(jobId, '');
  assert.deepEqual(
    readdirSync('/dev/shm').filter((name) => name.includes(jobId)),
    [],
  );
});

test('a rank that is gone before combine is named, and no half result is handed out', async () => {
  const { ranks, transcript } = await run('lost before combine', 2, { graceMs: 60_000 });
  const failure = failureOf(ranks[0]);
  assert.ok(['WL_PEER_LOST', 'WL_PEER_FAILED'].includes(failure.code), transcript);
  assert.match(failure.message, /[Rr]ank 1\b/, transcript);
});

test('a rank that stays away is named by WL_TIMEOUT, and then hears that the others gave up', async () => {
  const { ranks, transcript } = await run('absent', 4);
  for (const rank of [0, 2, 3]) {
    const failure = failureOf(ranks[rank]);
    assert.ok(['WL_TIMEOUT', 'WL_PEER_FAILED'].includes(failure.code), transcript);
    // On a busy machine another one may be as late.
    assert.match(failure.message, /Ranks? (\d, )*1\b[\d, ]* did not arrive within 400 ms/, transcript);
  }
  const late = failureOf(ranks[1]);
  assert.equal(late.code, 'WL_PEER_FAILED', transcript);
  assert.match(late.message, /Rank [023] gave up: WL_TIMEOUT/);
});

const mistakes = [
  ['other call', 'WL_CONFIG_MISMATCH', /dispatch.*combine|combine.*dispatch/],
  ['other topk', 'WL_CONFIG_MISMATCH', /topk/],
  ['other dtype', 'WL_CONFIG_MISMATCH', /rowBytes/],
  ['other config', 'WL_CONFIG_MISMATCH', /different hidden: 16 on rank 0, 24 on rank 1/],
  ['worst too small', 'WL_CAPACITY', /Rank 1 would receive .* more than its numWorstTokens 2/],
  ['calls behind worst too small', 'WL_CAPACITY', /Rank 1 would receive .* more than its numWorstTokens 2/],
  ['worst of one rank too small', 'WL_CAPACITY', /Rank 1 would receive 4 rows, more than its numWorstTokens 2/],
  [
    'address space',
    'WL_MEMORY',
    /EpBuffer needs .* address space: 2 windows of .* GiB \(one per rank of this host\) need/,
  ],
  [
    'other handle',
    'WL_CONFIG_MISMATCH',
    /cached dispatch of bf16 rows with handle 1 .*with handle 2|handle 2 .*handle 1/,
  ],
  ['other descriptor', 'WL_CONFIG_MISMATCH', /layer combine with descriptor [12]/],
  ['weights on one rank', 'WL_CONFIG_MISMATCH', /combine with handle 1 with(out)? topkWeights/],
  ['invalid on one rank', 'WL_CONFIG_MISMATCH', /different hidden: 12 on rank 0, 16 on rank 1/],
  ['invalid on all ranks', 'WL_INVALID_ARGUMENT', /Invalid hidden: expected .*, got 12/],
  [
    'layer cannot grow',
    'WL_MEMORY',
    /EPAll2AllLayer with \d+ rows per rank needs .*: 2 windows for the output of .* need/,
  ],
  ['other weights', 'WL_CONFIG_MISMATCH', /disagree on weightBytes/],
  ['scatter out of block', 'WL_INVALID_ARGUMENT', /fullScatterIndices of rank 1/],
  ['scatter repeated', 'WL_INVALID_ARGUMENT', /name a row of rank \d twice/],
] as const;

// The ranks live on: one job has all of them.
describe('every rank gets the same', () => {
  let told: readonly (readonly Failure[])[] = [];
  let all = '';

  before(async () => {
    const { exitCode, ranks, transcript } = await runRanks(2, script, { args: mistakes.map(([scenario]) => scenario) });
    assert.equal(exitCode, 0, transcript);
    told = ranks.map(({ stdout }) => stdout.map((line) => JSON.parse(line) as Failure));
    all = transcript;
  });

  for (const [index, [scenario, code, message]] of mistakes.entries()) {
    test(`${scenario}: ${code}`, () => {
      for (const rank of told) {
        assert.equal(rank[index]?.code, code, all);
        assert.match(rank[index].message, message, all);
      }
    });
  }
});

// It takes all memory and looks at what is left, so it has a job of its own.
test('no room: every rank gets the same WL_MEMORY', async () => {
  const { exitCode, ranks, transcript } = await run('no room', 2);
  assert.equal(exitCode, 0, transcript);
  for (const { code, message } of ranks.map(failureOf)) {
    assert.equal(code, 'WL_MEMORY', transcript);
    assert.match(message, /EpBuffer needs .*; .* are in use and the largest gap is 1 KiB/, transcript);
  }
});

test('a failure on one rank alone is reported to the others, which do not wait', async () => {
  const { exitCode, ranks, transcript } = await run('fails alone', 2);
  assert.equal(exitCode, 0, transcript);
  assert.equal(failureOf(ranks[0]).code, 'WL_MEMORY', transcript);
  assert.equal(failureOf(ranks[1]).code, 'WL_PEER_FAILED', transcript);
  assert.match(failureOf(ranks[1]).message, /Rank 0 gave up: WL_MEMORY: Cannot take/, transcript);
});

test('a rank that goes on with a buffer which another has closed gets WL_PEER_LOST, naming it', async () => {
  const { exitCode, ranks, transcript } = await run('closes its buffer', 2);
  assert.equal(exitCode, 0, transcript);
  assert.equal(failureOf(ranks[0]).code, 'WL_PEER_LOST', transcript);
  assert.match(failureOf(ranks[0]).message, /[Rr]ank 1/, transcript);
  assert.ok(failureOf(ranks[0]).ms < 60_000, transcript);
});

test("a rank that closes its world with an error ends the others' waits with that error", async () => {
  const { exitCode, ranks, transcript } = await run('closes with an error', 2);
  assert.equal(exitCode, 0, transcript);
  assert.equal(failureOf(ranks[0]).code, 'WL_PEER_FAILED', transcript);
  assert.match(failureOf(ranks[0]).message, /boom/, transcript);
  assert.ok(failureOf(ranks[0]).ms < 60_000, transcript);
});

test('kill -9 of one rank ends the waits of a layer too', async () => {
  const { ranks, transcript } = await run('layer loop', 3, {
    graceMs: 60_000,
    onLine: ({ rank, text }) => {
      const [, pid] = /^running (\d+)/.exec(text) ?? [];
      if (rank === 1 && pid !== undefined) process.kill(Number(pid), 'SIGKILL');
    },
  });
  for (const rank of [0, 2]) assert.match(failureOf(ranks[rank]).message, /[Rr]ank 1\b/, transcript);
});

test('an abort signal ends a wait with its reason and the other rank hears of it', async () => {
  const { exitCode, ranks, transcript } = await run('abort', 2);
  assert.equal(exitCode, 0, transcript);
  assert.match(failureOf(ranks[0]).message, /enough/);
  assert.equal(failureOf(ranks[1]).code, 'WL_PEER_FAILED', transcript);
});

for (const what of ['buffer', 'layer']) {
  test(`a choice that one rank gets wrong fails on all, and the ${what} goes on`, async () => {
    const { exitCode, ranks, transcript } = await run(`${what} choice`, 2);
    assert.equal(exitCode, 0, transcript);
    const [told, own] = ranks.map(failureOf);
    const place = /^Invalid (topkIdx|topkIdx)\[1, 1\].*: expected an expert from 0 to 3, or -1.* for none/;
    for (const one of [told, own]) {
      assert.equal(one?.code, 'WL_INVALID_ARGUMENT', transcript);
      assert.match(one.message, place, transcript);
    }
    assert.deepEqual([told?.rank, own?.rank], [1, undefined], transcript);
    assert.match(told?.message ?? '', /\] of rank 1: .* for none; the error of rank 1 shows the value$/, transcript);
    assert.match(own?.message ?? '', /got 7$/, transcript);
  });
}

test('wrong arguments fail before anything moves, naming argument, value and what is allowed', async () => {
  const { exitCode, ranks, transcript } = await run('arguments', 1);
  assert.equal(exitCode, 0, transcript);
  const found = resultOf(ranks[0]) as Record<string, string>;
  const expected: Record<string, RegExp> = {
    'x dtype': /^WL_INVALID_ARGUMENT: Invalid x: expected a bf16 tensor \[T, 16\].*, got "f32 \[2, 16\]"/,
    'x shape': /^WL_INVALID_ARGUMENT: Invalid x: expected .*, got "bf16 \[2, 8\]"/,
    'x missing': /^WL_INVALID_ARGUMENT: Invalid x: expected .*, got undefined/,
    'x disposed': /^WL_INVALID_ARGUMENT: Invalid x: expected .*, got "a closed tensor"/,
    'x of another device': /^WL_INVALID_ARGUMENT: Invalid x: expected .*, got "a tensor of another cpu device"/,
    'x in the window': /^WL_INVALID_ARGUMENT: Invalid x: expected .*, got "a tensor in the receive window"/,
    'weights in the window': /Invalid topkWeights: expected .*, got "a tensor in the receive window"/,
    'layout of other choices': /Invalid layout: expected .*, got "one of other choices"/,
    'layout with wrong counts': /Invalid layout.numTokensPerRank\[0\]: expected 2, the marks of isTokenInRank.*, got 1/,
    'combineInput of a foreign handle': /Invalid handle: expected .*, got "a handle of another buffer"/,
    'worst beside a handle': /Invalid numWorstTokens: expected nothing when a handle is given.*, got "a value"/,
    'timeout NaN': /Invalid timeoutMs: expected .*, got NaN/,
    'layer experts': /Invalid topkIdx\[0, 1\]: expected an expert from 0 to 3, or -1 or 4 for none.*, got 9/,
    'layer numExperts': /Invalid numExperts: expected .*, got 0/,
    'layer after its context': /^WL_CLOSED/,
    'layer weight in the window': /Invalid topkWeights: expected .*, got "a tensor in the layer's window"/,
    'too many tokens':
      /^WL_CAPACITY: Cannot dispatch 9 tokens: the buffer was made for at most 8 per rank \(maxTokensPerRank\)/,
    'expert too large': /^WL_INVALID_ARGUMENT: Invalid topkIdx\[1, 0\]: expected an expert from 0 to 3, or -1.*, got 4/,
    'expert below -1': /^WL_INVALID_ARGUMENT: Invalid topkIdx\[0, 1\]: expected .*, got -2/,
    'expert beyond i32': /^WL_INVALID_ARGUMENT: Invalid topkIdx\[0, 0\]: expected .*, got 4294967296/,
    'topk too wide': /^WL_INVALID_ARGUMENT: Invalid topkIdx columns: expected 1 to 2.*, got 3/,
    'no routing': /^WL_INVALID_ARGUMENT: Invalid topkIdx: expected .*, got undefined/,
    'handle and topk': /Invalid topkIdx: expected nothing when a handle is given, got "a value"/,
    'handle of another buffer': /got "a handle of another buffer"/,
    'disposed handle': /got "a closed handle"/,
    'combine shape': /Invalid x: expected .*, got "bf16 \[1, 16\]"/,
    'second call': /Cannot start dispatch on this EpBuffer: its dispatch has not ended/,
    'hidden not of 8': /Invalid hidden: expected a positive multiple of 8.*, got 12/,
    'experts not divisible': /Invalid numExperts: expected .*, got 0/,
    'topk over 32': /Invalid maxTopk: expected 1 to 32.*, got 33/,
    'after close': /^WL_CLOSED/,
    'layer weights': /Invalid topkWeights: expected a f32 tensor \[2, 2\].*, got "bf16 \[2, 2\]"/,
    'layer topk': /Invalid topkIdx/,
    'layer unknown option':
      /EPAll2AllLayer\.create: expected one of its 17 names, got "capasity" \(did you mean capacity\?\)/,
    'layer both names': /Invalid input: it is another name of x, which is given as well: give one of them/,
    'layer unknown argument':
      /EPAll2AllLayer\.dispatch: expected only .*, got "topkWeight" \(did you mean topkWeights\?\)/,
    'no device': /Invalid device: expected a CpuDevice or CudaDevice/,
    'layer no device': /Invalid device: expected a CpuDevice or CudaDevice/,
    'layer dtype': /Invalid tokenDtype: expected "bf16" or "f16" or "f32", got "fp8"/,
    'layer offsetDtype': /Invalid offsetDtype: expected "i32" or "i64", got "u8"/,
    'layer dtype of input': /Invalid x: expected a f16 tensor .*, got "bf16 \[2, 16\]"/,
    'layer stream': /Invalid stream: expected a stream of the device/,
    'layer call between stages': /Cannot call dispatch on an EPAll2AllLayer between .*: expected initOutputBuffer/,
    'layer stage too early': /Cannot call dispatchToken now: expected initOutputBuffer/,
    'layer stage with a bad option': /Invalid timeoutMs/,
    'layer stage of nothing': /Invalid staged: expected what the last preprocess\(\) of this layer returned/,
  };
  for (const [name, pattern] of Object.entries(expected))
    assert.match(found[name] ?? `no result for ${name}`, pattern, name);
  assert.deepEqual(Object.keys(found).toSorted(), Object.keys(expected).toSorted());
});

test('too little /dev/shm is told before anything is allocated, with what is needed', (t) => {
  const probe = spawnSync('unshare', ['-m', 'mount', '-t', 'tmpfs', '-o', 'size=8m', 'tmpfs', '/dev/shm']);
  const why = skipWithout('mounts', probe.status === 0 ? undefined : 'needs root to mount a small /dev/shm of its own');
  if (why !== false) return t.skip(why);
  const cli = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
  const command = `mount -t tmpfs -o size=8m tmpfs /dev/shm && exec ${process.execPath} ${cli} run -n 2 ${fileURLToPath(script)} small`;
  const { stdout, stderr } = spawnSync('unshare', ['-m', 'sh', '-c', command], { encoding: 'utf8' });
  assert.match(
    stdout,
    /WL_SHARED_MEMORY.*\/dev\/shm has 8 MiB free, 2 windows of .*B \(one per rank of this host\) need .*B: enlarge it/,
    stderr,
  );
});
