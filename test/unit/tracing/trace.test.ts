// What a process traces is read back from its file as it was, shown as Chrome's JSON, and summed up.
import assert from 'node:assert/strict';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import {
  createPart,
  createTraceFile,
  describeRank,
  partPath,
  partsOf,
  RingSink,
  TRACE_FIELDS,
  TRACE_FILE_BYTES,
  TRACE_RECORDS,
  TRACE_RINGS,
  traceField,
  traceRing,
  traceRingOffset,
} from '#lib/tracing/trace-rings.js';
import { traceView, collectTrace } from '#lib/programs/cli/trace-command.js';
import { viewPage } from '#lib/programs/report/view.js';
import { chromeTrace, clockOffsets, eventsOf, partsOfChrome } from '#lib/tracing/chrome-trace.js';
import { readTracePart, type Span, type TracePart } from '#lib/tracing/read-part.js';
import { summarize } from '#lib/tracing/trace-summary.js';

function temporaryFolder(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-trace-'));
  t.after(() => rmSync(folder, { recursive: true }));
  return folder;
}

const who = { pid: 7, rank: -1, size: 0, host: 'höst', program: 'train.js', launcher: 3 } as const;

test('a part with times and numbers that are none makes a trace that can be read', (t) => {
  const path = join(temporaryFolder(t), 'part');
  const file = createTraceFile(path, who);
  const sink = RingSink.claim(file, 'main')!;
  const count = 6;
  for (let each = 0; each < count; each++) {
    sink.begin('call', each, 'EpBuffer.dispatch');
    sink.end('call', each, 'EpBuffer.dispatch');
  }
  const bytes = readFileSync(path);
  const cells = traceRingOffset(0) + traceRing.size;
  const odd = [Number.NaN, Number.POSITIVE_INFINITY, -Number.MAX_VALUE, Number.MAX_VALUE];
  for (const [at, value] of odd.entries())
    bytes.writeDoubleLE(value, cells + (2 * at * TRACE_FIELDS + traceField.time) * 8);
  writeFileSync(path, bytes);
  const trace: unknown = JSON.parse(JSON.stringify(chromeTrace([readTracePart(path)], new Map())));
  const spans = partsOfChrome(trace).flatMap(({ threads }) => threads.flatMap((thread) => thread.spans));
  assert.equal(spans.length, count - odd.length);
});

test('10,000 calls of one name, messages of one number and ranks that wait take no time by the square', () => {
  const count = 10_000;
  const before = process.cpuUsage();
  const spans = (point: Span['point'], label: string): Span[] =>
    Array.from({ length: count }, (_, at) => ({ point, subject: 1, label, begin: at, end: at + 1 }));
  const part = (rank: number, own: readonly Span[]): TracePart => {
    return { ...who, rank, size: count, threads: [{ name: 'main', spans: own, lost: 0 }], gpuClocks: [] };
  };
  const parts = [
    part(0, [...spans('call', 'EpBuffer.barrier'), ...spans('transport.send', 'm')]),
    part(1, [...spans('call', 'EpBuffer.barrier'), ...spans('transport.arrival', 'm')]),
    ...spans('call', 'EpBuffer.dispatch').map((one, rank) => part(rank + 2, [one])),
  ];
  const read = partsOfChrome(chromeTrace(parts, clockOffsets(parts)));
  assert.equal(read.length, parts.length);
  const page = viewPage(traceView('t.json', summarize(read), read));
  assert.ok(page.sections.length > 0);
  const { user, system } = process.cpuUsage(before);
  assert.ok(user + system < 15e6, `${(user + system) / 1e6} s`);
});

test('200,000 tracks of a part make a trace, and times that are none make an error', () => {
  const none = { name: 'x', spans: [], lost: 0 };
  const part: TracePart = { ...who, gpuClocks: [], threads: Array.from({ length: 200_000 }, () => none) };
  const [one] = partOf(0, 'a', [span(7, 9)]).threads;
  const trace = chromeTrace([{ ...part, threads: [...part.threads, one!] }], new Map());
  assert.deepEqual(
    eventsOf(trace).flatMap(({ ts }) => ts ?? []),
    [0],
  );
  const odd = chromeTrace([partOf(0, 'a', [span(Number.NaN, 9)])], new Map());
  assert.throws(() => eventsOf(odd), /"ts" of event \d+ is not what weftline writes/);
});

test('records of threads are read back as spans, also those that have not ended', (t) => {
  const path = join(temporaryFolder(t), 'part');
  const file = createTraceFile(path, who);
  const main = RingSink.claim(file, 'main')!;
  const other = RingSink.claim(file, `engine ${'x'.repeat(300)}`)!;
  main.begin('call', 1, 'EpBuffer.dispatch of 0-3');
  main.begin('agent.transfer', 3);
  main.begin('agent.transfer', 4);
  main.end('agent.transfer', 3);
  main.begin('call', 1, 'Communicator.barrier of 1,2');
  main.end('call', 1, 'EpBuffer.dispatch of 0-3');
  other.end('transport.burst', 9);
  describeRank(file, 2, 4);
  const part = readTracePart(path);
  const { threads, gpuClocks, ...own } = part;
  assert.deepEqual(gpuClocks, []);
  assert.deepEqual(own, { ...who, rank: 2, size: 4 });
  assert.deepEqual(
    threads.map(({ name, lost }) => [name.slice(0, 8), lost]),
    [
      ['main', 0],
      ['engine x', 0],
    ],
  );
  const [spans, none] = part.threads.map((thread) => thread.spans);
  assert.deepEqual(none, []);
  assert.deepEqual(
    spans!.map(({ point, subject, label, end }) => [point, subject, label, end !== undefined]),
    [
      ['call', 1, 'EpBuffer.dispatch', true],
      ['agent.transfer', 3, '', true],
      ['agent.transfer', 4, '', false],
      ['call', 1, 'Communicator.barrier of 1,2', false],
    ],
  );
  const now = Date.now() * 1000;
  for (const { begin, end = begin } of spans!)
    assert.ok(begin <= end && Math.abs(begin - now) < 60e6, `${begin} at ${now}`);
});

test('a ring keeps the last records, labels have bounded room, and rings are bounded', (t) => {
  const path = join(temporaryFolder(t), 'part');
  const file = createTraceFile(path, who);
  const sink = RingSink.claim(file, 'main')!;
  for (let call = 0; call < TRACE_RECORDS; call++) {
    sink.begin('call', call, `label ${call % 1000}`);
    sink.end('call', call, `label ${call % 1000}`);
  }
  for (let ring = 1; ring < TRACE_RINGS; ring++) assert.ok(RingSink.claim(file, 'more'));
  assert.equal(RingSink.claim(file, 'too many'), undefined);
  const part = readTracePart(path);
  assert.equal(part.threads.length, TRACE_RINGS);
  const { spans, lost } = part.threads[0]!;
  assert.equal(lost, TRACE_RECORDS);
  assert.equal(spans.length, TRACE_RECORDS / 2);
  assert.equal(spans[0]!.subject, TRACE_RECORDS / 2);
  assert.ok(spans.every(({ label, subject }) => label === '' || label === `label ${subject % 1000}`));
  assert.ok(spans.some(({ label }) => label !== '') && spans.some(({ label }) => label === ''));
});

test('what is no part of a trace is refused by name', (t) => {
  const folder = temporaryFolder(t);
  const path = partPath(join(folder, 't.json'), 'host', 1);
  writeFileSync(path, 'no trace');
  assert.deepEqual(partsOf(join(folder, 't.json')), [path]);
  assert.throws(() => readTracePart(path), { code: 'WL_FILE_FORMAT', message: /8 bytes long/ });
  truncateSync(path, TRACE_FILE_BYTES);
  assert.throws(() => readTracePart(path), { code: 'WL_FILE_FORMAT', message: /no trace/ });
  for (const bad of [
    null,
    5,
    { traceEvents: [null], otherData: { weftline: 'trace' } },
    {},
    { traceEvents: [] },
    { traceEvents: 3, otherData: { weftline: 'trace' } },
  ])
    assert.throws(() => partsOfChrome(bad), /no events of weftline/);
});

function span(begin: number, end: number | undefined, facts: Partial<Span> = {}): Span {
  return { point: 'call', subject: 1, label: 'Communicator.barrier', begin, end, ...facts };
}

function partOf(rank: number, host: string, spans: readonly Span[]): TracePart {
  return {
    pid: 100 + rank,
    rank,
    size: 2,
    host,
    program: 'x',
    launcher: 0,
    gpuClocks: [],
    threads: [{ name: 'main', spans, lost: 0 }],
  };
}

test('clocks of hosts are compared by calls that nobody leaves before all have come', () => {
  // The second clock is 1000 ahead; both are in the barrier from 10 to 20 and from 30 to 34 of the first clock.
  const near = partOf(0, 'a', [span(10, 20), span(30, 34, { subject: 2 })]);
  const far = partOf(1, 'b', [span(1012, 1020), span(1031, 1034, { subject: 2 })]);
  const offsets = clockOffsets([near, far]);
  assert.equal(offsets.get('a'), 0);
  assert.ok(Math.abs(offsets.get('b')! - 1000) < 5, String(offsets.get('b')));
  const { traceEvents, otherData } = chromeTrace([near, far], offsets);
  assert.deepEqual(otherData['clockOffsetsUs'], Object.fromEntries(offsets));
  const begins = traceEvents.filter(({ ph }) => ph === 'X').map(({ ts }) => ts as number);
  assert.ok(
    begins.every((ts) => ts > -5 && ts < 40),
    begins.join(),
  );
  assert.equal(clockOffsets([near, partOf(1, 'b', [])]).get('b'), undefined);
  // The calls are of other groups: the first one's second call is before the other's first.
  const apart = partOf(1, 'b', [span(9000, 9001), span(10, 11, { subject: 2 })]);
  assert.equal(clockOffsets([near, apart]).get('b'), undefined);
});

function checkSummary(all: readonly TracePart[]): void {
  const { phases, lastIn, calls } = summarize(all);
  assert.equal(calls, 2);
  assert.deepEqual(lastIn, [{ process: 'rank 1', calls: 2, lateUs: 15 }]);
  const [{ phase, count, totalUs, mostUs, slowest, open }] = phases as [(typeof phases)[0]];
  assert.deepEqual(
    { phase, count, totalUs, mostUs, slowest, open },
    { phase: 'Communicator.barrier', count: 3, totalUs: 26, mostUs: 12, slowest: 'rank 0', open: 1 },
  );
}

test('arrows lead from messages to their arrivals, and from who came last to a call to the others', () => {
  const message = { label: 'm1a2b 1>2', subject: 9 } as const;
  const at = (time: number, facts: Partial<Span>): Span => span(time, time + 1, { ...message, ...facts });
  // The second clock is 1000 ahead. The number of a message comes again.
  const near = [
    span(10, 20),
    at(100_000, { point: 'transport.send' }),
    at(300_000, { point: 'transport.send' }),
    span(400_000, 500_000, { subject: 2 }),
  ];
  const far = [
    span(1015, 1020),
    at(101_050, { point: 'transport.arrival' }),
    at(301_070, { point: 'transport.arrival' }),
    at(301_080, { point: 'transport.arrival', subject: 8 }),
    span(451_000, undefined, { subject: 2 }),
  ];
  const offsets = new Map(Object.entries({ a: 0, b: 1000 }));
  const { traceEvents } = chromeTrace([partOf(0, 'a', near), partOf(1, 'b', far)], offsets);
  const flows = traceEvents.filter(({ ph }) => ph === 's' || ph === 'f');
  assert.deepEqual(
    flows.map(({ ph, name, pid, ts, id }) => [ph, name, pid, Math.round(ts as number), id]),
    [
      ['s', 'message', 0, 99_990, 1],
      ['f', 'message', 1, 100_040, 1],
      ['s', 'message', 0, 299_990, 2],
      ['f', 'message', 1, 300_060, 2],
      ['s', 'last to come', 1, 5, 3],
      ['f', 'last to come', 0, 10, 3],
      ['s', 'last to come', 1, 449_990, 4],
      ['f', 'last to come', 0, 499_990, 4],
    ],
  );
  const read = partsOfChrome({ traceEvents, otherData: { weftline: 'trace' } });
  assert.deepEqual(
    read.map(({ threads }) => threads[0]!.spans.length),
    [4, 5],
  );
});

test('a summary names the slowest rank, who came last, and what has not ended', () => {
  const parts = [
    partOf(0, 'a', [span(0, 10), span(20, 32, { subject: 2 })]),
    partOf(1, 'a', [span(6, 10), span(29, undefined, { subject: 2 })]),
  ];
  checkSummary(parts);
  checkSummary(partsOfChrome(JSON.parse(JSON.stringify(chromeTrace(parts, clockOffsets(parts))))));
});

test('calls that are under way at once, and a rank that was started again, have tracks of their own', () => {
  const nested = span(1, 3, { point: 'ep.closing', label: '' });
  const parts = [
    partOf(1, 'a', [span(0, 10), nested, span(5, 15, { label: 'Other.barrier' })]),
    partOf(1, 'a', [span(20, 30)]),
  ];
  const { traceEvents } = chromeTrace(parts, new Map());
  const kinds = traceEvents
    .filter(({ ph }) => ph !== 'M')
    .map(({ ph, name, pid }) => `${String(ph)} ${String(name)} ${String(pid)}`);
  const again = 1_000_000_101;
  assert.deepEqual(kinds, [
    'X Communicator.barrier 1',
    'X ep.closing 1',
    'b Other.barrier 1',
    'e Other.barrier 1',
    `X Communicator.barrier ${again}`,
  ]);
});

test('parts stay while their process lives, also one whose number nobody has in this namespace', (t) => {
  const file = join(temporaryFolder(t), 't.json');
  const path = partPath(file, hostname(), 2 ** 22 + 1);
  createTraceFile(path, { ...who, host: hostname(), pid: 2 ** 22 + 1 });
  assert.deepEqual([collectTrace(file).isWritten, existsSync(path)], [true, true]);
  assert.throws(() => createTraceFile(path, who), { code: 'WL_FILE' });
});

test('a process whose name of a part is taken gets another one, of the same trace', (t) => {
  const file = join(temporaryFolder(t), 't.json');
  // What cannot be removed as a file, as that of another user in a sticky folder.
  mkdirSync(partPath(file, who.host, who.pid));
  const { path } = createPart(file, { ...who, rank: 0, size: 1 });
  assert.ok(partsOf(file).includes(path));
  assert.deepEqual(
    collectTrace(file).parts.map(({ pid }) => pid),
    [who.pid],
  );
  assert.throws(() => createPart(join(file, 'none', 't.json'), who), { code: 'ENOTDIR' });
});

test('names of parts and reasons why they are not read begin no line of a terminal', (t) => {
  const file = join(temporaryFolder(t), 't.json');
  const planted = 'x\nweftline: all is well\u001b[2J';
  writeFileSync(partPath(file, `${planted} short`, 1), 'no trace');
  mkdirSync(partPath(file, `${planted} folder`, 1));
  // Node's own error has the name as it is.
  symlinkSync('nowhere', partPath(file, `${planted} link`, 1));
  for (const [launcher, at] of [1, 2].entries()) {
    const path = partPath(file, `${planted} ${at}`, at);
    createTraceFile(path, { ...who, rank: 0, size: 1, launcher });
    utimesSync(path, at, at);
  }
  const { unread } = collectTrace(file);
  assert.equal(unread.length, 4, unread.join('\n'));
  for (const why of unread) assert.doesNotMatch(why, /[\p{Cc}\p{Cf}]/u);
});
