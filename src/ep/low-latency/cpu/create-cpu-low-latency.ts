// Makes the engine of an EpLowLatency on CPU ranks: the ranks agree, then make windows together, or one joins again.
import { agreeOn } from '../../../group/agree.ts';
import { describeCall } from '../../../group/calls.ts';
import { withoutCounts } from '../../../core/counts.ts';
import { type CallWait, Deadline } from '../../../core/deadline.ts';
import { asWeftlineError } from '../../../core/errors.ts';
import { withoutTrace } from '../../../core/trace.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { HostNetwork } from '../../../group/network/host-network.ts';
import { TensorSet } from '../../../device/device.ts';
import { checkMemoryBudget } from '../../../windows/memory-budget.ts';
import type { SharedMemoryName } from '../../../windows/shared-memory.ts';
import { SymmetricWindow, type SymmetricWindowOptions } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import { SoloGroup } from '../../../world/solo-group.ts';
import {
  checkLowLatencyCombine,
  checkLowLatencyDispatch,
  type LowLatencyEngine,
  rowShape,
} from '../low-latency-arguments.ts';
import {
  comparableConfig,
  type LowLatencyConfig,
  type LowLatencyScope,
  lowLatencySize,
  type LowLatencySize,
  withLowLatencyDefaults,
} from '../low-latency-size.ts';
import { type AnnouncementBoard, attachWindow, joinOrCreate } from '../members/low-latency-joining.ts';
import { ranksOfHosts } from '../../across-hosts/network-size.ts';
import { CpuLowLatencyEngine, forgetMembers } from './cpu-low-latency-engine.ts';
import { type ForwardingTables, lowLatencyRoutes, makeForwardingTables } from './host-forwarding.ts';
import { type LowLatencyTables, makeLowLatencyTables } from './low-latency-rows.ts';

// A process that joins makes calls by itself first: the code of a call is then compiled before other ranks wait for it.

/** Rounds of each data type. With 40 the first calls afterwards still take longer; with 400 they take no less. */
const ROUNDS = 200;
/** Few and short rows run the same code, and take next to no time. */
const [TOKENS, HIDDEN] = [4, 256];
/** Nobody is waited for. */
const TIMEOUT_MS = 60_000;

/** Configuration of the object that rehearses for one with that configuration. */
export function rehearsalConfig(given: LowLatencyConfig, ranks: number): LowLatencyConfig {
  const numExperts = given.numExperts / ranks;
  const { maxTokensPerExpert: _, ...config } = given;
  return {
    ...config,
    numExperts,
    maxTokensPerRank: TOKENS,
    hidden: HIDDEN,
    maxTopk: Math.min(given.maxTopk, numExperts),
  };
}

/** `engine`: of this rank alone, used for nothing else. What it counts and traces is not told to anybody. */
export function rehearse(scope: LowLatencyScope<CpuDevice>, engine: LowLatencyEngine): Promise<void> {
  return withoutTrace(() => withoutCounts(() => makeCalls(scope, engine)));
}

async function makeCalls(scope: LowLatencyScope<CpuDevice>, engine: LowLatencyEngine): Promise<void> {
  const { device, config } = scope;
  const k = config.maxTopk;
  const wait = { deadline: new Deadline(TIMEOUT_MS), signal: undefined };
  const { set, made } = TensorSet.make(device, (tensors) => ({
    x: tensors.empty('bf16', [TOKENS, HIDDEN]),
    topkIdx: tensors.empty('i32', [TOKENS, k]),
    weights: tensors.empty('f32', [TOKENS, k]),
    y: tensors.empty('bf16', rowShape(scope)),
    out: tensors.empty('bf16', [TOKENS, HIDDEN]),
  }));
  try {
    const { x, topkIdx, weights, y, out } = made;
    for (const tensor of [x, weights, y]) device.kernels.fillBytes(tensor.address, 0, tensor.bytes);
    topkIdx.view().forEach((_, at, choices) => (choices[at] = at % k));
    const weighted = { topkWeights: weights };
    const isByChoice = config.layout === 'expert-major' && config.combineTravels === 'choices';
    for (let sequence = 1; sequence <= 2 * ROUNDS; sequence++) {
      const dtype = sequence % 2 === 0 ? 'fp8' : 'bf16';
      const input = checkLowLatencyDispatch(
        { x, topkIdx, dtype, ...(isByChoice ? {} : weighted) },
        scope,
        engine.mapped,
      );
      await engine.prepareDispatch(input, sequence);
      const { handle } = await engine.dispatch(input, sequence, wait);
      const buffer = (): number => engine.combineBufferAddress(handle);
      const sums = { x: y, handle, out, ...(isByChoice ? weighted : {}) };
      await engine.combine(checkLowLatencyCombine(sums, scope, { window: engine.mapped, buffer }), wait);
      engine.membership?.shortfall(handle);
    }
  } finally {
    set[Symbol.dispose]();
  }
}

const what = 'EpLowLatency';
/** That of ranks that make an elastic object together; see MemberExchange. */
const FIRST_LIFE = 1;

interface CpuLowLatencyOptions {
  /** There for elastic ranks alone. */
  readonly board?: AnnouncementBoard;
  readonly group: RankGroup;
  readonly device: CpuDevice;
  /** The configuration as the caller gave it, and with defaults. */
  readonly given: LowLatencyConfig;
  readonly config: Required<LowLatencyConfig>;
}

/** An engine, and the number of its first dispatch. */
interface CpuLowLatency {
  readonly scope: LowLatencyScope<CpuDevice>;
  readonly engine: CpuLowLatencyEngine;
  readonly next: number;
}

/** Collective: agrees on the configuration, makes the tables and the window. Of an elastic object a rank whose former process did so joins it. */
export async function createCpuLowLatency(
  options: CpuLowLatencyOptions,
  wait: CallWait & { readonly deadline: Deadline },
): Promise<CpuLowLatency> {
  const { group, config } = options;
  if (!config.elastic || group.size === 1) return (await createTogether(options, wait)).made;
  return joinOrCreate(group, {
    create: (board) => createFirst({ ...options, board }, board, wait),
    join: (board) => joinAgain(options, board, wait),
  });
}

async function createFirst(
  options: CpuLowLatencyOptions,
  board: AnnouncementBoard,
  wait: CallWait,
): Promise<CpuLowLatency> {
  const { made, window } = await createTogether(options, wait);
  try {
    await board.announce(window, options.config, made.engine.facts);
    return made;
  } catch (error) {
    await made.engine.close();
    throw error;
  }
}

async function createTogether(
  options: CpuLowLatencyOptions,
  wait: CallWait,
): Promise<{ readonly made: CpuLowLatency; readonly window: SymmetricWindow }> {
  const { group, device, given, config } = options;
  const { size, tables } = await agreeOn(
    group,
    {
      what,
      config: comparableConfig(config, device.kind),
      prepare: () => {
        const sizes = lowLatencySize(given, group.size, 'cpu', ranksOfHosts(group));
        checkMemoryBudget(what, [{ name: 'windows', bytes: sizes.bytes, isShared: true }], { group, device });
        return { size: sizes, tables: makeTables(options) };
      },
      release: (prepared) => disposeAll(prepared.tables),
    },
    wait,
  );
  let window: SymmetricWindow | undefined;
  let network: HostNetwork | undefined;
  try {
    window = await SymmetricWindow.create({ ...wait, ...windowOf(group, device, size.bytes) });
    const scope = { group, device, config: Object.freeze({ ...config }), size };
    network = tables.across && (await openNetwork(options, { size, window }, wait));
    const across = tables.across && network && { tables: tables.across, network };
    const life = FIRST_LIFE;
    const engine = new CpuLowLatencyEngine(scope, { window, tables: tables.calls, across, board: options.board, life });
    return { window, made: { scope, engine, next: 1 } };
  } catch (error) {
    await network?.close();
    window?.[Symbol.dispose]();
    disposeAll(tables);
    throw error;
  }
}

interface MadeTables {
  readonly calls: LowLatencyTables;
  readonly across: ForwardingTables | undefined;
}

/** All that a rank needs besides the window, before anything is shared. Fails with WL_MEMORY. */
function makeTables({ group, device, config }: CpuLowLatencyOptions): MadeTables {
  const calls = makeLowLatencyTables(device, config, group.size);
  if (group.topology.hosts.length === 1) return { calls, across: undefined };
  try {
    return { calls, across: makeForwardingTables(group, device, config) };
  } catch (error) {
    calls[Symbol.dispose]();
    throw error;
  }
}

function disposeAll(tables: MadeTables): void {
  tables.calls[Symbol.dispose]();
  tables.across?.[Symbol.dispose]();
}

interface NetworkSide {
  readonly size: LowLatencySize;
  readonly window: SymmetricWindow;
}

/** Collective; fails alike on all ranks. */
function openNetwork(options: CpuLowLatencyOptions, side: NetworkSide, wait: CallWait): Promise<HostNetwork> {
  return HostNetwork.create({ ...wait, ...networkOf(options, side) });
}

function networkOf({ group, device, config }: CpuLowLatencyOptions, { size: { regions }, window }: NetworkSide) {
  return {
    routes: lowLatencyRoutes(group, config),
    // Who links to a rank anew must know that nothing comes behind what it was told.
    ...(config.elastic && { mostChannels: 1 }),
    group,
    device,
    name: 'EpLowLatency',
    barrier: window.barrier,
    windows: [window],
    cells: regions.networkCells.offset,
    aborts: regions.aborts.offset,
    // What is sent is one run of bytes.
    rows: { rows: 0, rowWindow: 0 },
  };
}

/** Takes the place of this rank's former process; not collective. Resolves once an active rank has connected it. */
async function joinAgain(
  options: CpuLowLatencyOptions,
  board: AnnouncementBoard,
  wait: CallWait & { readonly deadline: Deadline },
): Promise<CpuLowLatency> {
  const { group, device, given, config } = options;
  const peers = await board.peers(config, wait);
  const life = (await board.lastLife()) + 1;
  const size = lowLatencySize(given, group.size, 'cpu', ranksOfHosts(group));
  // This comes behind the checks, whose errors name what the caller gave.
  await rehearseAlone(options);
  const tables = makeTables(options);
  let window: SymmetricWindow | undefined;
  let network: HostNetwork | undefined;
  let engine: CpuLowLatencyEngine | undefined;
  try {
    window = await windowAgain({ ...options, board }, size, peers, wait.deadline);
    const scope = { group, device, config: Object.freeze({ ...config }), size };
    network = tables.across && (await HostNetwork.open(networkOf(options, { size, window })));
    const across = tables.across && network && { tables: tables.across, network };
    engine = new CpuLowLatencyEngine(scope, { window, tables: tables.calls, across, board, life });
    if (across === undefined) await board.announce(window, config);
    const next = await engine.membership!.rejoin({ deadline: wait.deadline, signal: wait.signal });
    return { scope, engine, next };
  } catch (error) {
    // It owns both, and memory that it has made ready since.
    if (engine !== undefined) await engine.close();
    else {
      await network?.close();
      window?.[Symbol.dispose]();
      disposeAll(tables);
    }
    throw error;
  }
}

/** The window of this host: that of living ranks, or of another one that has come back, or a new one where the host has come back. */
async function windowAgain(
  { group, device, board }: CpuLowLatencyOptions & { readonly board: AnnouncementBoard },
  size: LowLatencySize,
  peers: readonly SharedMemoryName[],
  deadline: Deadline,
): Promise<SymmetricWindow> {
  const of = windowOf(group, device, size.bytes);
  try {
    return await attachWindow(of, peers, deadline);
  } catch (error) {
    if (group.topology.hosts.length === 1 || asWeftlineError(error).code !== 'WL_PEER_LOST') throw error;
  }
  return board.shareMemory({
    attach: (memory) => attachWindow(of, [memory], deadline),
    make: () => {
      const window = SymmetricWindow.found(of);
      forgetMembers({ group, device, size }, window);
      return window;
    },
  });
}

/** A rank that has no memory for it can still join. */
async function rehearseAlone({ group, device, given }: CpuLowLatencyOptions): Promise<void> {
  const solo = new SoloGroup(group);
  const small = rehearsalConfig(given, group.size);
  const options = { group: solo, device, given: small, config: withLowLatencyDefaults(small, solo.size) };
  try {
    const { made } = await createTogether(options, {});
    try {
      await rehearse(made.scope, made.engine);
    } finally {
      await made.engine.close();
    }
  } catch (error) {
    if (asWeftlineError(error).code !== 'WL_MEMORY') throw error;
  }
}

function windowOf(group: RankGroup, device: CpuDevice, bytes: number): SymmetricWindowOptions {
  return { group, device, name: 'low-latency', bytes, describeCall };
}
