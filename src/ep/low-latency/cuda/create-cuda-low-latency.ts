// Makes the engine of an EpLowLatency on GPUs: the ranks agree, compile, then make windows and, on several hosts, links together.
import { LOW_LATENCY_EMPTY, lowLatencyFailures } from '../../../abi/low-latency.ts';
import { trapReasons } from '../../../abi/trap-record.ts';
import type { CallWait, Deadline } from '../../../core/deadline.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { ExpiredWait } from '../../../device/cuda/trap-box.ts';
import { columnsOf, describeWait, overflowError } from '../call-words.ts';
import { CudaLowLatencyEngine } from './cuda-low-latency-engine.ts';
import { ElasticCalls, type ElasticParts } from './elastic-calls.ts';
import {
  bindLaunches,
  type CudaLowLatencyTables,
  loadLaunches,
  type LowLatencyLaunches,
  makeCudaTables,
} from './low-latency-launches.ts';
import { MemberBoard, PeerWindows } from './peer-windows.ts';
import {
  comparableConfig,
  type LowLatencyConfig,
  type LowLatencyScope,
  type LowLatencySize,
  lowLatencySize,
  requireFewHosts,
  requireOneHost,
} from '../low-latency-size.ts';
import { type AnnouncementBoard, attachWindow, joinOrCreate } from '../members/low-latency-joining.ts';
import { memberBoardLayout } from '../members/low-latency-cells.ts';
import { agreeOn, agreeOnKernels } from '../../../group/agree.ts';
import { describeCall } from '../../../group/calls.ts';
import { CudaCalls, requireCudaLimits } from '../../../group/cuda-calls.ts';
import { hostRoutes } from '../../../group/network/host-routes.ts';
import { CudaHostNetwork } from '../../across-hosts/cuda-host-network.ts';
import { ranksOfHosts, requirePinnedBytes } from '../../across-hosts/network-size.ts';
import { CudaWindow } from '../../../windows/cuda-window.ts';
import { agree, agreeHere, SymmetricWindow, type SymmetricWindowOptions } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import type { LowLatencyEngine } from '../low-latency-arguments.ts';

// What a rank prepares for an EpLowLatency on GPUs before any memory is shared: sizes, kernels, tables.

const WHAT = 'EpLowLatency';

interface CudaLowLatencyOptions {
  readonly group: RankGroup;
  readonly device: CudaDevice;
  /** The configuration as the caller gave it, and with defaults. */
  readonly given: LowLatencyConfig;
  readonly config: Required<LowLatencyConfig>;
}

/** An engine, and the number of its first dispatch. */
interface CudaLowLatency {
  readonly scope: LowLatencyScope;
  readonly engine: LowLatencyEngine;
  readonly next: number;
}

/** Fails with WL_UNSUPPORTED or WL_INVALID_ARGUMENT. */
function sizeOf({ group, device, given, config }: CudaLowLatencyOptions): LowLatencySize {
  if (config.elastic) requireOneHost(group, 'An elastic EpLowLatency');
  if (config.combineTravels === 'choices') requireOneHost(group, "EpLowLatency on GPUs with combineTravels 'choices'");
  requireFewHosts(group);
  const size = lowLatencySize(given, group.size, device.kind, ranksOfHosts(group));
  if (size.network !== undefined) requirePinnedBytes(size.network.bytes, 0);
  requireCudaLimits(WHAT, group, config.numExperts);
  return size;
}

interface LoadedParts {
  readonly launches: LowLatencyLaunches;
  /** The memory of the host that words of members lie in; of an elastic object. */
  readonly host: CpuDevice | undefined;
}

interface PreparedParts extends LoadedParts {
  readonly tables: CudaLowLatencyTables;
}

/** Compiles what is in no cache. Fails with WL_COMPILE, WL_UNSUPPORTED, WL_CUDA or WL_MEMORY. */
async function loadParts({ device, config, group }: CudaLowLatencyOptions): Promise<LoadedParts> {
  const launches = await loadLaunches(device, config, group.topology.hosts.length > 1);
  return { launches, host: config.elastic ? await CpuDevice.create() : undefined };
}

/** Fails with WL_MEMORY. */
function prepareParts({ device, config, group }: LowLatencyScope<CudaDevice>, loaded: LoadedParts): PreparedParts {
  const tables = makeCudaTables(device, config, group);
  const served = tables.results.flatMap(({ servedRows, servedCounts }) => [servedRows, servedCounts]);
  // Kernels count from zero. Where a message names fewer rows than it claims, the places of the others are in bounds.
  for (const table of [tables.blocks, tables.decisions, tables.elastic, tables.hostsDone, ...served]) {
    if (table.bytes > 0) device.setBytes(table, 0);
  }
  return { ...loaded, tables };
}

/** Collective: agrees on the configuration, compiles the kernels, makes the tables. */
async function prepareTogether(
  options: CudaLowLatencyOptions,
  wait: CallWait,
): Promise<{ readonly scope: LowLatencyScope<CudaDevice>; readonly parts: PreparedParts }> {
  const { group, device, config } = options;
  const agreed = { what: WHAT, config: comparableConfig(config, device.kind), prepare: () => sizeOf(options) };
  const size = await agreeOn(group, agreed, wait);
  const scope = { group, device, config: Object.freeze({ ...config }), size };
  const load = (): Promise<LoadedParts> => loadParts(options);
  const prepare = (loaded: LoadedParts): PreparedParts => prepareParts(scope, loaded);
  const parts = await agreeOnKernels(group, { what: WHAT, load, prepare, release: releaseParts }, wait);
  return { scope, parts };
}

/** Enqueues filling the regions whose words show that they have come. `window`: the address of this rank's part. */
export function emptyRegions({ device, config, size }: LowLatencyScope<CudaDevice>, window: number): void {
  const { fp8Rows, scales, combineRows, standIns } = size.regions;
  if (fp8Rows.bytes === 0) return;
  // All bytes of the word are alike.
  const byte = LOW_LATENCY_EMPTY & 0xff;
  const empty = config.combineTravels === 'rank-sums' ? [fp8Rows, scales, combineRows] : [fp8Rows, scales];
  for (const { offset, bytes } of empty) device.setBytes({ address: window + offset, bytes }, byte);
  const { offset, bytes } = combineRows;
  for (let at = standIns.offset; at < standIns.offset + standIns.bytes; at += standIns.stride) {
    device.setBytes({ address: window + at + offset, bytes }, byte);
  }
}

/** The window of each rank as kernels find it; of a rank on another host, its stand-in at the rank that serves it here. */
function windowsOf({ group, size }: LowLatencyScope, { addresses }: CudaWindow): number[] {
  const { hosts, scaleUpRanks } = group.topology;
  const { offset, stride } = size.regions.standIns;
  const windows = Array.from({ length: group.size }, () => 0);
  for (const [index, rank] of scaleUpRanks.entries()) {
    windows[rank] = addresses[index]!;
    for (const [slot, source] of hostRoutes(hosts, rank).served.entries()) {
      windows[source.rank] = addresses[index]! + offset + slot * stride;
    }
  }
  return windows;
}

function releaseParts({ tables }: PreparedParts): void {
  tables[Symbol.dispose]();
}

// What a low-latency kernel says of a call that cannot go on, here or at a peer, as an error.

const WORD = 2 ** 32;

/** Undefined for a record of another kind. */
function explainFailure(trap: ExpiredWait, config: Required<LowLatencyConfig>): WeftlineError | undefined {
  const isHere = trap.reason === trapReasons.callFailed;
  if (!isHere && trap.reason !== trapReasons.peerFailed) return undefined;
  const kind = trap.expected % 256;
  const number = Math.floor(trap.expected / 256);
  const detail = trap.seen % WORD;
  const extent = Math.floor(trap.seen / WORD);
  const rank = trap.peer;
  if (kind === lowLatencyFailures.overflow) {
    const error = overflowError({ expert: detail, rows: extent, dispatch: number }, config);
    return isHere ? error : failedThere(rank, error.message, error.details);
  }
  if (kind === lowLatencyFailures.badChoice) {
    const columns = Math.max(1, columnsOf(trap.channel));
    const place = `topkIdx[${Math.floor(detail / columns)}, ${detail % columns}]`;
    const message = `Invalid ${place} of rank ${rank} in dispatch ${number}: expected an expert from 0 to ${config.numExperts - 1}, or -1 for none`;
    const details = { argument: place, rank, dispatch: number };
    return isHere
      ? new WeftlineError('WL_INVALID_ARGUMENT', message, { details })
      : failedThere(rank, message, details);
  }
  return failedThere(rank, `it gave up while this rank was in ${describeWait(trap.channel)}`, { rank });
}

function failedThere(rank: number, message: string, details: Readonly<Record<string, unknown>>): WeftlineError {
  return new WeftlineError('WL_PEER_FAILED', `Rank ${rank} failed: ${message}`, { details, rank });
}

/** Collective: agrees on the configuration, compiles the kernels, makes the tables and the window. Of an elastic object a rank whose former process did so joins it. */
export async function createCudaLowLatency(
  options: CudaLowLatencyOptions,
  wait: CallWait & { readonly deadline: Deadline },
): Promise<CudaLowLatency> {
  const { group, device, config } = options;
  if (config.elastic) return createElasticCuda(options, wait);
  const { scope, parts } = await prepareTogether(options, wait);
  const made: { window?: CudaWindow; calls?: CudaCalls; network?: CudaHostNetwork } = {};
  try {
    const name = 'low-latency';
    const window = await CudaWindow.create({
      ...wait,
      group,
      device,
      name,
      bytes: scope.size.bytes,
      addsToPeers: WHAT,
      fill: ({ address }) => emptyRegions(scope, address),
    });
    made.window = window;
    const calls = new CudaCalls(group, device, {
      describe: describeWait,
      explain: (trap) => explainFailure(trap, config) ?? made.network?.explain(trap),
      onGiveUp: (error) => made.network?.giveUp(error),
    });
    made.calls = calls;
    const { network: networkSize } = scope.size;
    if (networkSize !== undefined) {
      const of = { group, device, name, calls, maxTokensPerRank: config.maxTokensPerRank };
      const [isWide, isFp8] = [config.combinePrecision === 'f32', config.combinePrecision === 'fp8-lossy'];
      made.network = await CudaHostNetwork.create({ ...wait, ...of, size: networkSize, isWide, isFp8 });
    }
    const { network } = made;
    bindLaunches(parts.launches, scope, {
      windows: windowsOf(scope, window),
      traps: calls.traps,
      tables: parts.tables,
      network: network?.address ?? 0,
    });
    return { scope, engine: new CudaLowLatencyEngine(scope, { ...parts, window, calls, network }), next: 1 };
  } catch (error) {
    made.network?.giveUp(error);
    await made.network?.close();
    made.calls?.[Symbol.dispose]();
    made.window?.[Symbol.dispose]();
    releaseParts(parts);
    throw error;
  }
}

// Makes the engine of an elastic EpLowLatency on GPUs of one host: all ranks together, or a process in the place of a former one.

type ElasticWait = CallWait & { readonly deadline: Deadline };

async function createElasticCuda(options: CudaLowLatencyOptions, wait: ElasticWait): Promise<CudaLowLatency> {
  // Nobody keeps what a process that joins would need in place of one rank alone.
  if (options.group.size === 1) return createTogether(options, undefined, wait);
  return joinOrCreate(options.group, {
    create: (announcements) => createTogether(options, announcements, wait),
    join: (announcements) => joinAgain(options, announcements, wait),
  });
}

async function createTogether(
  options: CudaLowLatencyOptions,
  announcements: AnnouncementBoard | undefined,
  wait: ElasticWait,
): Promise<CudaLowLatency> {
  const { scope, parts } = await prepareTogether(options, wait);
  const { group, device, config, size } = scope;
  const host = parts.host as CpuDevice;
  const made = new MadeParts(parts);
  try {
    const steps = { ...wait, group, name: 'low-latency', bytes: size.bytes };
    const window = made.keep(await SymmetricWindow.create({ ...wait, ...boardOf(options, host) }));
    const board = made.replace(window, await agreeHere(steps, 'pin', () => new MemberBoard(device, host, window)));
    const windows = made.keep(await agreeHere(steps, 'allocate', () => new PeerWindows(device, board, size)));
    await agree(steps, 'offer', async () => {
      await windows.offer(0);
      return 0;
    });
    await agree(steps, 'map', () => {
      windows.look();
      return 0;
    });
    const engine = makeEngine(scope, parts, { board, windows });
    try {
      await announcements?.announce(window, config);
    } catch (error) {
      made.forget();
      await engine.close();
      throw error;
    }
    return { scope, engine, next: 1 };
  } catch (error) {
    made[Symbol.dispose]();
    throw error;
  }
}

/** Joins the others; not collective. Resolves once an active rank has connected this one. */
async function joinAgain(
  options: CudaLowLatencyOptions,
  announcements: AnnouncementBoard,
  wait: ElasticWait,
): Promise<CudaLowLatency> {
  const { group, device, config } = options;
  const peers = await announcements.peers(config, wait);
  const size = sizeOf(options);
  const scope = { group, device, config: Object.freeze({ ...config }), size };
  const parts = prepareParts(scope, await loadParts(options));
  const host = parts.host as CpuDevice;
  const made = new MadeParts(parts);
  try {
    const window = made.keep(await attachWindow(boardOf(options, host), peers, wait.deadline));
    const board = made.replace(window, new MemberBoard(device, host, window));
    // This comes before anybody could wait for its new window: its former process may still count as active.
    board.members.mask(window.index);
    const windows = made.keep(new PeerWindows(device, board, size));
    await windows.offer(board.reached);
    windows.look();
    const engine = makeEngine(scope, parts, { board, windows });
    made.forget();
    try {
      await announcements.announce(window, config);
      const next = await engine.membership!.rejoin({ deadline: wait.deadline, signal: wait.signal });
      return { scope, engine, next };
    } catch (error) {
      await engine.close();
      throw error;
    }
  } catch (error) {
    made[Symbol.dispose]();
    throw error;
  }
}

function makeEngine(
  scope: LowLatencyScope<CudaDevice>,
  parts: PreparedParts,
  elastic: ElasticParts,
): CudaLowLatencyEngine {
  const { group, device, config } = scope;
  const { board, windows } = elastic;
  const elasticCalls = new ElasticCalls(scope, elastic, parts.tables);
  // Ranks that are lost end no call here.
  const callers = { ranks: group.ranks, settings: group.settings, peerLost: new AbortController().signal };
  const calls = new CudaCalls(callers, device, {
    describe: describeWait,
    explain: (trap) => explainFailure(trap, config),
    onGiveUp: () => elasticCalls.giveUp(),
  });
  const { index, ranks } = board.window;
  bindLaunches(parts.launches, scope, {
    windows: ranks.map((_, rank) => (rank === index ? windows.storage.address : 0)),
    traps: calls.traps,
    tables: parts.tables,
    network: 0,
    board: { address: board.address, stride: board.stride, table: windows.table },
  });
  return new CudaLowLatencyEngine(scope, { ...parts, window: windows, calls, elastic: elasticCalls });
}

function boardOf({ group }: CudaLowLatencyOptions, device: CpuDevice): SymmetricWindowOptions {
  return { group, device, name: 'low-latency-members', bytes: memberBoardLayout.bytes, describeCall };
}

/** What is given back, the last first, if the object does not come to be. */
class MadeParts implements Disposable {
  #made: Disposable[];

  constructor(parts: PreparedParts) {
    this.#made = [{ [Symbol.dispose]: () => releaseParts(parts) }];
  }

  keep<T extends Disposable>(part: T): T {
    this.#made.push(part);
    return part;
  }

  /** `part` owns `former`. */
  replace<T extends Disposable>(former: Disposable, part: T): T {
    this.#made = this.#made.filter((one) => one !== former);
    return this.keep(part);
  }

  forget(): void {
    this.#made = [];
  }

  [Symbol.dispose](): void {
    for (const part of this.#made.toReversed()) part[Symbol.dispose]();
    this.#made = [];
  }
}
