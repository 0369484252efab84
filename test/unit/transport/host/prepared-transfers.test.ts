// Transfers of many ranges in the engine's thread: what is posted when, and when the message follows.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import type { Region } from '#lib/transport/engine/region.js';
import type { ScatterOptions, TransportConnection } from '#lib/transport/engine/transport-engine.js';
import { PreparedTransfers, type TransferPlan } from '#lib/transport/host/prepared-transfers.js';
import { PartTable, PartWriter } from '#lib/transport/part-table.js';
import { MAX_GATHERED_BYTES } from '#lib/transport/send/range-list.js';
import { planned } from '../../../local/support/planned-transfer.ts';
import type { EncodedError } from '#lib/core/errors.js';

const DATA_REGION = 3;
const STAGING_REGION = 4;

/** A connection that notes what is posted, and ends requests when it is told to. */
function pretendedHost(): {
  readonly transfers: PreparedTransfers;
  readonly log: string[];
  /** Slots whose transfers are done. */
  readonly done: ReadonlySet<number>;
  readonly end: (handle: number, error?: EncodedError) => void;
  /** Parts on other engines that have not ended, and whether one has failed, for every request. */
  readonly elsewhere: { parts: number; hasFailed: boolean };
} {
  const elsewhere = { parts: 0, hasFailed: false };
  const log: string[] = [];
  const slots = new Map<number, number>();
  const done = new Set<number>();
  let next = 1;
  const note = (what: string): number => {
    log.push(`${next} ${what}`);
    return next++;
  };
  type Options = Record<'offset' | 'bytes' | 'flow' | 'remoteRegion' | 'remoteOffset' | 'add', number> & {
    region: Region;
  };
  const describe = (kind: string, { region, offset, bytes, flow, remoteOffset }: Options): string =>
    `${kind} ${bytes} from ${region.id}+${offset} to ${remoteOffset} on ${flow}`;
  const connection = {
    scatter: (options: ScatterOptions) => note(`scatter ${describeRanges(options)}`),
    gather: (options: ScatterOptions) => note(`gather ${describeRanges(options)}`),
    write: (options: Options) => note(describe('write', options)),
    read: (options: Options) => note(describe('read', options)),
    signal: ({ remoteOffset, add, flow }: Options) => note(`signal ${add} at ${remoteOffset} on ${flow}`),
  } as unknown as TransportConnection;
  const transfers = new PreparedTransfers({
    connection: (number) => (number < 8 ? connection : undefined),
    region: (id) => (id === DATA_REGION || id === STAGING_REGION ? ({ id } as Region) : undefined),
    follow: (handle, slot) => slots.set(handle, slot),
    done: (slot, bytes) => {
      done.add(slot);
      log.push(`slot ${slot} done, ${bytes} bytes`);
    },
    failed: (slot, error) => log.push(`slot ${slot} failed: ${error.code}`),
    isAlone: () => elsewhere.parts === 0,
    hasFailedElsewhere: () => elsewhere.hasFailed,
  });
  return { transfers, log, done, elsewhere, end: (handle, error) => transfers.ended(slots.get(handle) ?? -1, error) };
}

function describeRanges({ ranges, region, flow, remoteRegion }: ScatterOptions): string {
  const lengths = [...ranges.lengths.subarray(ranges.first, ranges.end)].join('+');
  return `${lengths} from ${region.id} to ${remoteRegion} on ${flow}`;
}

const lost: EncodedError = { code: 'WL_UNAUTHORIZED', message: 'no', details: {} };

interface PlanOptions {
  readonly parts?: number;
  readonly operation?: 'read' | 'write';
  readonly region?: number;
  readonly connection?: number;
}

/** Region, offset, remote region, remote key, remote offset, bytes. */
type Row = readonly [number, number, number, number, number, number];

function tableOf(rows: readonly Row[]): Pick<TransferPlan, 'parts' | 'regions' | 'remoteRegions' | 'remoteKeys'> {
  const names = new Map(rows.map(([, , region, key]) => [`${region} ${key}`, { region, key }]));
  const { locals, remotes, parts } = planned(
    rows.map(([local, localOffset, region, key, remoteOffset, bytes]) => {
      return { local, localOffset, remote: names.get(`${region} ${key}`), remoteOffset, bytes };
    }),
  );
  return {
    parts: parts.buffer,
    regions: locals,
    remoteRegions: remotes.map((remote) => remote?.region ?? -1),
    remoteKeys: remotes.map((remote) => remote?.key ?? -1),
  };
}

function plan(transfers: PreparedTransfers, options: PlanOptions = {}): number {
  const { parts = 2, operation = 'read', region = DATA_REGION, connection = 0 } = options;
  const line = transfers.openLine({
    connection,
    flow: 9,
    region: STAGING_REGION,
    remoteRegion: 1,
    remoteKey: 1,
    counter: 0,
    ring: 64,
    ringBytes: 32,
  });
  const rows = Array.from({ length: parts }, (_, index) => [region, index * 10, 1, index, index * 100, 10] as const);
  return transfers.prepare({ connection, operation, flow: 2, isBySelection: false, ...tableOf(rows), line });
}

const nothing = { offset: 0, bytes: 0 };

test('a plan by selection is posted with the rows that its table has then', () => {
  const { transfers, log, end } = pretendedHost();
  const table = PartTable.withRoom(8);
  const common = { connection: 0, flow: 2, line: -1, operation: 'write', isBySelection: true } as const;
  const regions = { regions: [DATA_REGION], remoteRegions: [1], remoteKeys: [1] };
  const transfer = transfers.prepare({ ...common, ...regions, parts: table.buffer });
  const most = MAX_GATHERED_BYTES;
  const writer = new PartWriter(table, false);
  for (const [round, rows] of [
    [[0, 500, most + 1]],
    [
      [0, 0, 8],
      [1000, 1000, 8],
      [9, 90, most + 1],
      [10, 70, 20],
      [100, 170, 20],
      [200, 270, 20],
    ],
    [[64, 0, 8]],
  ].entries()) {
    writer.restart();
    for (const [localOffset = 0, remoteOffset = 0, bytes = 0] of rows) {
      writer.add(0, localOffset, 4096, 0, remoteOffset, 4096, bytes, 1);
    }
    writer.finish();
    log.length = 0;
    transfers.post(5, transfer, nothing);
    const posted = log.map((line) => line.split(' ').slice(1).join(' '));
    assert.deepEqual(
      posted,
      [
        [`write ${most + 1} from 3+0 to 500 on 2`],
        ['scatter 8+8 from 3 to 1 on 2', `write ${most + 1} from 3+9 to 90 on 2`, 'scatter 20+20+20 from 3 to 1 on 2'],
        ['write 8 from 3+64 to 0 on 2'],
      ][round],
    );
    for (const line of log.slice()) end(Number(line.split(' ')[0]));
    const total = rows.reduce((sum, [, , bytes = 0]) => sum + bytes, 0);
    assert.equal(log.at(-1), `slot 5 done, ${total} bytes`);
  }
  // What the engine refuses fails the post, and nothing else.
  writer.restart();
  writer.add(0, 0, 8, 0, 2 ** 50, 8, 8, 2);
  writer.finish();
  transfers.post(5, transfer, nothing);
  assert.equal(log.at(-1), 'slot 5 failed: WL_INVALID_ARGUMENT');
});

test('who forgets a transfer of a connection that has ended forgets no other one', () => {
  const { transfers, log } = pretendedHost();
  const ended = plan(transfers);
  transfers.end(0, lost);
  const other = plan(transfers, { parts: 1 });
  transfers.forget(ended);
  transfers.post(5, other, nothing);
  assert.deepEqual(log, ['1 read 10 from 3+0 to 0 on 2']);
});

test('all ranges are posted at once; the end comes with the last of them', () => {
  const { transfers, log, end } = pretendedHost();
  transfers.post(5, plan(transfers), nothing);
  assert.deepEqual(log.splice(0), ['1 read 10 from 3+0 to 0 on 2', '2 read 10 from 3+10 to 100 on 2']);
  end(2);
  assert.deepEqual(log, []);
  assert.ok(transfers.has(5));
  end(1);
  assert.deepEqual(log, ['slot 5 done, 20 bytes']);
  assert.ok(!transfers.has(5));
});

test('the message follows when every range has ended, in pieces where the ring ends', () => {
  const { transfers, log, end } = pretendedHost();
  const transfer = plan(transfers, { parts: 1, operation: 'read' });
  transfers.post(5, transfer, { offset: 128, bytes: 24 });
  end(1);
  assert.deepEqual(log.splice(0), [
    '1 read 10 from 3+0 to 0 on 2',
    '2 write 24 from 4+128 to 64 on 9',
    '3 signal 24 at 0 on 9',
  ]);
  // Its message is on its way: it ends as it would have.
  assert.equal(transfers.cancel(5), false);
  end(2);
  end(3);
  assert.deepEqual(log.splice(0), ['slot 5 done, 10 bytes']);
  transfers.post(6, transfer, { offset: 0, bytes: 16 });
  end(4);
  assert.deepEqual(log.splice(1), [
    '5 write 8 from 4+0 to 88 on 9',
    '6 write 8 from 4+8 to 64 on 9',
    '7 signal 16 at 0 on 9',
  ]);
});

test('the message waits for the ranges on other engines, and is not sent if one of them fails', () => {
  const { transfers, log, end, elsewhere } = pretendedHost();
  const transfer = plan(transfers, { parts: 1 });
  for (const hasFailed of [false, true]) {
    Object.assign(elsewhere, { parts: 2, hasFailed: false });
    log.length = 0;
    transfers.post(5, transfer, { offset: 0, bytes: 8 });
    end(Number(log[0]?.split(' ')[0]));
    elsewhere.parts = 1;
    transfers.resume();
    assert.equal(log.length, 1);
    Object.assign(elsewhere, { parts: 0, hasFailed });
    transfers.resume();
    assert.equal(log.length, hasFailed ? 2 : 3);
    for (const line of log.slice(1)) if (/write|signal/.test(line)) end(Number(line.split(' ')[0]));
    assert.equal(log.at(-1), 'slot 5 done, 10 bytes');
  }
});

test('a range that fails holds the message back, and the end waits for the others', () => {
  const { transfers, log, end } = pretendedHost();
  transfers.post(5, plan(transfers), { offset: 0, bytes: 8 });
  log.length = 0;
  end(1, lost);
  assert.deepEqual(log, []);
  end(2);
  assert.deepEqual(log, ['slot 5 failed: WL_UNAUTHORIZED']);
});

test('no more than 8192 ranges of a connection are under way; the rest follows', () => {
  const { transfers, log, end } = pretendedHost();
  transfers.post(1, plan(transfers, { parts: 8000 }), nothing);
  transfers.post(2, plan(transfers, { parts: 1000 }), nothing);
  assert.equal(log.length, 8192);
  end(1);
  assert.equal(log.length, 8193);
  for (let handle = 2; handle <= 9000; handle++) end(handle);
  assert.deepEqual(log.slice(9000), ['slot 1 done, 80000 bytes', 'slot 2 done, 10000 bytes']);
});

test('a transfer behind one that fills its connection takes its turn', () => {
  const { transfers, log, done, end } = pretendedHost();
  transfers.post(1, plan(transfers, { parts: 100_000 }), nothing);
  transfers.post(2, plan(transfers, { parts: 3 }), nothing);
  let handle = 1;
  while (!done.has(2)) end(handle++);
  assert.ok(handle < 8192 + 200, `${handle} ranges came before it`);
  for (; !done.has(1); handle++) end(handle);
  assert.ok(log.includes('slot 2 done, 30 bytes'));
  assert.equal(log.at(-1), 'slot 1 done, 1000000 bytes');
  assert.equal(log.length, 100_003 + 2);
});

test('a peer whose ranges do not end holds up no transfer to another one', () => {
  const { transfers, log, done, end } = pretendedHost();
  for (const connection of [0, 1, 2, 3, 4, 5]) {
    transfers.post(connection, plan(transfers, { parts: 20_000, connection }), nothing);
  }
  assert.equal(log.length, 4 * 8192 + 2 * 16);
  log.length = 0;
  transfers.post(7, plan(transfers, { parts: 1000, connection: 7 }), nothing);
  assert.equal(log.length, 16);
  for (let handle = 4 * 8192 + 2 * 16 + 1; !done.has(7); handle++) end(handle);
  assert.equal(log.at(-1), 'slot 7 done, 10000 bytes');
  assert.equal(log.length, 1001);
});

test('a transfer that is cancelled while it waits for its turn leaves the others theirs', () => {
  const { transfers, log, end } = pretendedHost();
  transfers.post(1, plan(transfers, { parts: 9000 }), nothing);
  transfers.post(2, plan(transfers, { parts: 1 }), nothing);
  transfers.post(3, plan(transfers, { parts: 1 }), nothing);
  assert.equal(transfers.cancel(2), true);
  assert.equal(log.at(-1), 'slot 2 failed: WL_CLOSED');
  // The slot is another's now.
  transfers.post(2, plan(transfers, { parts: 2 }), nothing);
  for (let handle = 1; handle <= 9003; handle++) end(handle);
  assert.deepEqual(log.filter((line) => line.startsWith('slot')).toSorted(), [
    'slot 1 done, 90000 bytes',
    'slot 2 done, 20 bytes',
    'slot 2 failed: WL_CLOSED',
    'slot 3 done, 10 bytes',
  ]);
});

test('cancelled, closed or without its region, a transfer fails', () => {
  const { transfers, log, end } = pretendedHost();
  transfers.post(1, plan(transfers, { parts: 1 }), nothing);
  assert.equal(transfers.cancel(1), true);
  end(1, lost);
  transfers.post(2, plan(transfers, { region: 77 }), nothing);
  transfers.post(3, plan(transfers, { parts: 1 }), { offset: 0, bytes: 8 });
  transfers.end(0, { ...lost, code: 'WL_CLOSED' });
  end(2);
  assert.deepEqual(
    log.filter((line) => line.startsWith('slot')),
    ['slot 1 failed: WL_CLOSED', 'slot 2 failed: WL_CLOSED', 'slot 3 failed: WL_CLOSED'],
  );
  const transfer = plan(transfers);
  transfers.forget(transfer);
  assert.throws(
    () => transfers.post(4, transfer, nothing),
    (error) => error instanceof WeftlineError && error.code === 'WL_CLOSED',
  );
});

test('small writes and reads between the same regions are posted as one, others alone, in their order', () => {
  const { transfers, log, end } = pretendedHost();
  const most = MAX_GATHERED_BYTES;
  const parts = [
    [DATA_REGION, 0, 1, 1, 0, most + 1],
    [DATA_REGION, 500, 1, 1, 200, most],
    [DATA_REGION, 700, 1, 1, 400, 1],
    [DATA_REGION, 900, 1, 1, 600, 100],
    [DATA_REGION, 1100, 2, 7, 0, 100],
    [STAGING_REGION, 0, 2, 7, 300, 4],
    [STAGING_REGION, 10, 2, 7, 400, 5],
  ] as const;
  const common = { connection: 0, flow: 2, isBySelection: false, ...tableOf(parts), line: -1 };
  transfers.post(5, transfers.prepare({ ...common, operation: 'write' }), nothing);
  assert.deepEqual(log.splice(0), [
    `1 write ${most + 1} from 3+0 to 0 on 2`,
    `2 scatter ${most}+1+100 from 3 to 1 on 2`,
    '3 write 100 from 3+1100 to 0 on 2',
    '4 scatter 4+5 from 4 to 2 on 2',
  ]);
  for (const handle of [1, 2, 3, 4]) end(handle);
  assert.deepEqual(log.splice(0), [`slot 5 done, ${2 * most + 211} bytes`]);
  transfers.post(6, transfers.prepare({ ...common, operation: 'read' }), nothing);
  assert.deepEqual(log.splice(0), [
    `5 read ${most + 1} from 3+0 to 0 on 2`,
    `6 gather ${most}+1+100 from 3 to 1 on 2`,
    '7 read 100 from 3+1100 to 0 on 2',
    '8 gather 4+5 from 4 to 2 on 2',
  ]);
});
