// The KV bench between two processes: pages of requests beside one range of the same bytes, read and written by the client.
import {
  DescriptorList,
  type Registration,
  type RemoteMemory,
  type Selection,
  type Transfer,
} from '../../../agent/index.ts';
import { MAX_SELECTED } from '../../../agent/transfer-plan.ts';
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import {
  measureInTurn,
  monotonicMicroseconds,
  type Samples,
  summarize,
  summarizeDifferences,
  summarizeRates,
  summarizeRatios,
} from '../harness.ts';
import { recordRun } from '../machine.ts';
import { type P2pSessionOptions, withP2pServer } from '../p2p/p2p-bench.ts';
import { MEMORY_NAMES, type P2pSession, type P2pWorkload } from '../p2p/p2p-phases.ts';
import { type KvOp, type KvPlan, type KvPoint, pageEntries, planKv } from './kv-workload.ts';

/** Written into every document, so that a number can be read without this source. */
const method = {
  pages:
    'kv-dsv4 of CollectiveX (InferenceX pull request 2510): layer by layer the pages of a request, at random places of pools that both sides have, as one transfer per request; all are posted, then all are awaited. Time from the first post to the last end, at the client.',
  ranges:
    'A range is a page of one layer of one cache: bytes that lie together, which a transfer moves on their own. Leases, generations and checksums, with which KvReader reads, are not in any figure.',
  post: 'The calls that post, which look the pages of the requests up in the lists of all pages.',
  bulk: 'One transfer of one range of as many bytes, in the same rounds, in turn with the pages.',
  ratio: 'Of a round: the time of bulk over that of the pages.',
  cpu: 'Time of all threads of the client, user and system, per range.',
  extra: 'Of a round: the time of the pages less that of bulk, per range.',
  prepare:
    'Lists of all pages of both sides and prepare, for as many requests at a time; once for a peer. The median of three.',
  verified:
    'Behind the rounds every page was moved once more, and every word of it was what lies at its place on the other side.',
} as const;

export interface KvBenchWorkload {
  readonly tokens: readonly number[];
  readonly pageTokens: readonly number[];
  readonly requests: number;
  readonly ops: readonly KvOp[];
  readonly iterations: number;
  readonly warmup: number;
}

interface KvBenchOptions extends P2pSessionOptions {
  readonly workload: KvBenchWorkload;
  readonly onResult: (result: KvResult) => void;
}

export type KvBenchReport = Awaited<ReturnType<typeof runKvBench>>;
export type KvResult = Awaited<ReturnType<typeof measurePoint>>;

/** Most bytes of the pools of one side. */
const MAX_POOL_BYTES = 2 ** 32 - 2 ** 20;
const [SEED_HERE, SEED_THERE] = [67, 1067];
const PREPARATIONS = 3;

/** Fails with WL_INVALID_ARGUMENT for pools that no memory of an agent can hold, and more pages than one transfer moves. */
export function pointsOf({ tokens, pageTokens, requests }: KvBenchWorkload): readonly KvPoint[] {
  const points = tokens.flatMap((each) => pageTokens.map((page) => ({ tokens: each, pageTokens: page, requests })));
  for (const [point, { poolBytes, ranges }] of points.map((one) => [one, planKv(one)] as const)) {
    const tooMuch = (what: string): WeftlineError => invalidArgument('tokens', point.tokens, `fewer: ${what}`);
    if (poolBytes > MAX_POOL_BYTES) throw tooMuch(`pools of ${poolBytes} bytes are above ${MAX_POOL_BYTES}`);
    if (ranges > MAX_SELECTED) throw tooMuch(`${ranges} pages of a request are above ${MAX_SELECTED}`);
  }
  return points;
}

/** Fails with WL_CHECK for a page that is wrong, and with the server's own error if that ended. */
export async function runKvBench(options: KvBenchOptions) {
  const { workload, onResult } = options;
  const points = pointsOf(workload);
  const memoryBytes = Math.max(...points.map((point) => planKv(point).poolBytes));
  return withP2pServer(options, emptyWorkload(memoryBytes), (session) => {
    const backend: string = session.connection.backend;
    const head = { schema: 'weftline.bench.kv/1' as const, method, workload, device: options.device, backend };
    return recordRun(undefined, head, async () => {
      const results: KvResult[] = [];
      for (const point of points) {
        for (const op of workload.ops) {
          const result = await measurePoint(session, point, op, workload);
          results.push(result);
          onResult(result);
        }
      }
      return { results };
    });
  });
}

function emptyWorkload(memoryBytes: number): P2pWorkload {
  const none = { iterations: 1, inflight: 1, blocks: undefined, pings: 0, descriptors: 0, compare: 0 };
  return { ...none, mode: 'read', sizes: [], memoryBytes };
}

type Figure = 'time' | 'post' | 'cpu';

/** A transfer, and the entries of its lists that it moves; all by default. */
interface Move {
  readonly transfer: Transfer;
  readonly selection?: Selection;
}

async function measurePoint(session: P2pSession, point: KvPoint, op: KvOp, rounds: KvBenchWorkload) {
  const pages = await openPages(session, planKv(point), point.requests);
  const { preparation, moves } = await pages.prepare(op);
  const bulk = [await pages.bulk(op, pages.bytes)];
  try {
    const samples = await measureInTurn<readonly Move[], Figure>(undefined, [moves, bulk], rounds, moveAll);
    await verify(session, pages, { op, moves });
    const parts = moves.reduce((sum, { transfer }) => sum + transfer.telemetry.parts, 0);
    return resultOf({ ...point, op, ranges: pages.ranges, parts, bytes: pages.bytes }, samples, preparation);
  } finally {
    for (const { transfer } of [...moves, ...bulk]) await transfer.close();
  }
}

async function moveAll(moves: readonly Move[]): Promise<Readonly<Record<Figure, number>>> {
  const before = process.cpuUsage();
  const begin = monotonicMicroseconds();
  for (const { transfer, selection } of moves) transfer.post(undefined, selection);
  const posted = monotonicMicroseconds();
  for (const { transfer } of moves) transfer.waitBlocking();
  const end = monotonicMicroseconds();
  const { user, system } = process.cpuUsage(before);
  await new Promise((resolve) => setImmediate(resolve));
  return { time: end - begin, post: posted - begin, cpu: user + system };
}

function resultOf<Of extends { readonly ranges: number; readonly bytes: number }>(
  of: Of,
  [pages, bulk]: readonly Samples<Figure>[],
  prepareMilliseconds: number,
) {
  const { ranges, bytes } = of;
  const perRange = (values: readonly number[]): readonly number[] => values.map((value) => value / ranges);
  const [time, bulkTime] = [pages!.slowest('time'), bulk!.slowest('time')];
  return {
    ...of,
    microseconds: summarize(time),
    postMicroseconds: summarize(pages!.slowest('post')),
    gigabytesPerSecond: summarizeRates(bytes, time),
    cpuMicrosecondsPerRange: summarize(perRange(pages!.slowest('cpu'))),
    extraMicrosecondsPerRange: summarizeDifferences(perRange(time), perRange(bulkTime)),
    prepareMilliseconds,
    bulk: {
      microseconds: summarize(bulkTime),
      gigabytesPerSecond: summarizeRates(bytes, bulkTime),
      cpuMicroseconds: summarize(bulk!.slowest('cpu')),
    },
    ratio: summarizeRatios(bulkTime, time),
    isVerified: true,
  };
}

// The pages of all requests of a point: lists of both sides, and where each range lies.

type Pages = Awaited<ReturnType<typeof openPages>>;

async function openPages(session: P2pSession, plan: KvPlan, requests: number) {
  const { memory, connection, endpoint } = session;
  const remote = await session.remote(MEMORY_NAMES.server);
  const [here, there] = [SEED_HERE, SEED_THERE].map((seed) => pageEntries(plan, requests, seed));
  const { peer, backend } = connection;
  const { agent } = endpoint;
  const prepareAll = (operation: KvOp): Promise<Move[]> =>
    Promise.all(
      here!.map(async (local, request) => {
        const lists = { local: listOf(memory, plan), remote: listOf(remote, plan), bySelection: true };
        const transfer = await agent.prepare({ operation, peer, backend, ...lists });
        return { transfer, selection: { local, remote: there![request]! } };
      }),
    );
  return {
    ranges: plan.ranges * requests,
    bytes: plan.bytes * requests,
    /** The transfers of all requests, and the ms that it took to prepare them. */
    prepare: async (operation: KvOp) => {
      const times: number[] = [];
      for (;;) {
        const begin = monotonicMicroseconds();
        const moves = await prepareAll(operation);
        times.push((monotonicMicroseconds() - begin) / 1000);
        if (times.length === PREPARATIONS) return { moves, preparation: summarize(times).median };
        for (const { transfer } of moves) await transfer.close();
      }
    },
    /** One range of so many bytes from the beginning of both memories. */
    bulk: async (operation: KvOp, bytes: number): Promise<Move> => {
      const lists = { local: DescriptorList.of(memory, 0, bytes), remote: DescriptorList.of(remote, 0, bytes) };
      return { transfer: await agent.prepare({ operation, peer, backend, ...lists }) };
    },
    /** Offsets of all ranges, here and there, and their bytes. */
    *places() {
      const [own, other] = [listOf(memory, plan), listOf(remote, plan)];
      for (const [request, entries] of here!.entries()) {
        for (const [index, entry] of entries.entries()) {
          const { address, length } = own.entry(entry);
          const { address: far } = other.entry(there![request]![index]!);
          yield { local: address - memory.address, remote: far - remote.address, bytes: length };
        }
      }
    },
  };
}

/** All pages of all pools, layer by layer. */
function listOf(memory: Registration | RemoteMemory, { pools }: KvPlan): DescriptorList {
  const lists = pools.flatMap(({ layers, pageBytes, poolPages, offset }) =>
    Array.from({ length: layers }, (_, layer) => {
      const begin = offset + layer * poolPages * pageBytes;
      return DescriptorList.blocks(memory, { blockBytes: pageBytes, offset: begin, count: poolPages });
    }),
  );
  return DescriptorList.join(lists);
}

/** What a word of memory is filled with, by its offset; every word differs from its neighbours, and from those of other fills. */
function wordAt(offset: number, fill: number): number {
  return Math.imul(offset + fill, 0x9e37_79b1);
}

/** Moves every page between memories whose words say where they come from. */
async function verify(
  session: P2pSession,
  pages: Pages,
  { op, moves }: { readonly op: KvOp; readonly moves: readonly Move[] },
): Promise<void> {
  const whole = session.memory.length;
  const moveWhole = async (operation: KvOp): Promise<void> => {
    const move = await pages.bulk(operation, whole);
    await moveAll([move]);
    await move.transfer.close();
  };
  const fill = async (number: number): Promise<void> => {
    const words = new Int32Array(Math.floor(whole / 4));
    for (let word = 0; word < words.length; word++) words[word] = wordAt(4 * word, number);
    await session.write(new Uint8Array(words.buffer));
  };
  const [there, here] = [1, 2];
  await fill(there);
  await moveWhole('write');
  await fill(here);
  await moveAll(moves);
  if (op === 'write') await moveWhole('read');
  const bytes = await session.content();
  const words = new Int32Array(bytes.buffer, bytes.byteOffset, Math.floor(bytes.length / 4));
  for (const { local, remote, bytes: length } of pages.places()) {
    const [to, from, number] = op === 'read' ? [local, remote, there] : [remote, local, here];
    for (let at = 0; at < length; at += 4) {
      if (words[(to + at) / 4] === wordAt(from + at, number)) continue;
      throw new WeftlineError(
        'WL_CHECK',
        `A page that was to be ${op === 'read' ? 'read' : 'written'} is wrong ${at} bytes behind its begin`,
        { details: { op, offset: to, from } },
      );
    }
  }
}
