// The GPU's way of a low-latency call: a kernel that sends and receives, or one for each around a hook, or where other hosts come in
// between. Nothing waits for the host, and the host waits for nothing: results are there for what follows on the device's stream.
import {
  LOW_LATENCY_RESULTS,
  lowLatencyPhases,
  lowLatencyScales,
  lowLatencyTravels,
} from '../../../abi/low-latency.ts';
import { CudaCallOrder, type CudaCalls, type RecordingOf } from '../../../group/cuda-calls.ts';
import { recordingOf } from '../../../device/cuda/cuda-graph.ts';
import { deadlineOf, remaining } from '../../../core/deadline.ts';
import { type DType, dtypes } from '../../../core/dtype.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { LaunchPlan } from '../../../device/cuda/kernel.ts';
import { type MemoryRange, type Storage, Tensor } from '../../../device/tensor.ts';
import { combineWord, dispatchWord } from '../call-words.ts';
import {
  type CheckedLowLatencyCombine,
  type CheckedLowLatencyDispatch,
  type LowLatencyEngine,
  type LowLatencyScales,
  type LowLatencyWait,
  readsInPlace,
  rowShape,
  scalesDtype,
  scaleShape,
  type SentCombine,
} from '../low-latency-arguments.ts';
import {
  type LowLatencyDispatchResult,
  LowLatencyHandle,
  type LowLatencyMembership,
  type LowLatencyRows,
} from '../low-latency-results.ts';
import type { CudaHostNetwork } from '../../across-hosts/cuda-host-network.ts';
import type { LowLatencyRegion, LowLatencyScope } from '../low-latency-size.ts';
import type { ElasticCalls } from './elastic-calls.ts';
import {
  type CudaLowLatencyTables,
  type CudaResultTables,
  type DispatchPlan,
  type LowLatencyLaunches,
  travelsOf,
} from './low-latency-launches.ts';

/** What an engine is made of, and owns. */
interface CudaLowLatencyParts {
  readonly launches: LowLatencyLaunches;
  readonly tables: CudaLowLatencyTables;
  readonly window: OwnWindow;
  readonly calls: CudaCalls;
  /** The way to other hosts; undefined for ranks of one. */
  readonly network?: CudaHostNetwork | undefined;
  /** The calls of an elastic object. */
  readonly elastic?: ElasticCalls | undefined;
}

/** This rank's part of the memory that all map. */
interface OwnWindow extends Disposable {
  readonly storage: Storage;
}

const { send: SEND, receive: RECEIVE } = lowLatencyPhases;
const BOTH = SEND | RECEIVE;
/** Calls run on the device's stream, in their order. */
const IN_TURN = Object.freeze({});

export class CudaLowLatencyEngine implements LowLatencyEngine {
  readonly #scope: LowLatencyScope<CudaDevice>;
  readonly #window: OwnWindow;
  readonly #elastic: ElasticCalls | undefined;
  readonly #tables: CudaLowLatencyTables;
  readonly #launches: LowLatencyLaunches;
  readonly #calls: CudaCalls;
  readonly #network: CudaHostNetwork | undefined;
  /** Launches of graphs may be on other streams; calls before and after them keep their order. */
  readonly #order: CudaCallOrder;
  readonly #recording: RecordingOf;
  /** What this rank has still to do for other hosts in the calls that it has sent, in their order. */
  readonly #relays: Relay[] = [];
  #requireIdle: (what: string) => void = () => {};
  readonly #isRankMajor: boolean;
  /** All choices travel. */
  readonly #isByChoice: boolean;
  /** Memory of results for which no `out` was given, by parity of the dispatch; made when first needed. */
  readonly #own: (Tensor<'u8'> | undefined)[] = [undefined, undefined];
  readonly #outgrown: Tensor<'u8'>[] = [];

  constructor(scope: LowLatencyScope<CudaDevice>, parts: CudaLowLatencyParts) {
    const { launches, tables, window, calls, network, elastic } = parts;
    this.#elastic = elastic;
    this.#network = network;
    this.#scope = scope;
    this.#window = window;
    this.#tables = tables;
    this.#launches = launches;
    this.#calls = calls;
    this.#order = new CudaCallOrder(scope.device);
    this.#recording = {
      order: this.#order,
      network: network && {
        wake: (recording) => this.#beforeLaunch(recording),
        expectKernels: () => network.expectKernels(),
      },
      begin: () => () => this.#requireIdle('the launch of a graph'),
    };
    this.#isRankMajor = scope.config.layout === 'rank-major';
    this.#isByChoice = travelsOf(scope.config) === lowLatencyTravels.choices;
  }

  get mapped(): MemoryRange {
    return this.#window.storage;
  }

  get membership(): LowLatencyMembership | undefined {
    return this.#elastic?.membership;
  }

  guardLaunches(requireIdle: (what: string) => void): void {
    this.#requireIdle = requireIdle;
  }

  throwIfUnusable(): void {
    this.#calls.throwIfUnusable();
    this.#elastic?.requireActive();
  }

  /** Choices lie in the GPU's memory, and its kernel checks them. */
  prepareDispatch({ scales, out }: CheckedLowLatencyDispatch, sequence: number): void {
    this.#elastic?.requireActive(sequence);
    if (this.#isRankMajor || out !== undefined) return;
    const { resultBytes } = this.#scope.size;
    const bytes = scales === undefined ? resultBytes.bf16 : resultBytes.fp8;
    const parity = sequence % LOW_LATENCY_RESULTS;
    if ((this.#own[parity]?.bytes ?? -1) >= bytes) return;
    const grown = this.#scope.device.empty('u8', [bytes]);
    // Graphs may still write there.
    if (this.#own[parity]) this.#outgrown.push(this.#own[parity]);
    this.#own[parity] = grown;
  }

  dispatch(
    input: CheckedLowLatencyDispatch,
    sequence: number,
    wait: LowLatencyWait,
  ): Promise<LowLatencyDispatchResult> {
    this.#elastic?.beginDispatch(sequence);
    return Promise.resolve(this.#launchReceiving(input, sequence, { wait, phases: BOTH }));
  }

  sendDispatch(input: CheckedLowLatencyDispatch, sequence: number, wait: LowLatencyWait): Promise<void> {
    this.#elastic?.beginDispatch(sequence);
    this.#launchSending(input, sequence, wait);
    return Promise.resolve();
  }

  receiveDispatch(
    input: CheckedLowLatencyDispatch,
    sequence: number,
    wait: LowLatencyWait,
  ): Promise<LowLatencyDispatchResult> {
    return Promise.resolve(this.#launchReceiving(input, sequence, { wait, phases: RECEIVE }));
  }

  combineBufferAddress({ sequence }: LowLatencyHandle): number {
    return this.#window.storage.address + this.#offset('combineRows', sequence % LOW_LATENCY_RESULTS);
  }

  combineBuffer(handle: LowLatencyHandle, wait: LowLatencyWait): Promise<Tensor<'bf16'>> {
    const plan = this.#launches.awaitBuffer;
    const set = plan.arguments;
    set.set('result', handle.sequence % LOW_LATENCY_RESULTS);
    set.set('call', combineWord(handle.sequence));
    set.set('timeoutNs', this.#calls.timeoutNs(wait));
    this.#elastic?.setCombine(plan, handle, 0);
    this.#launch(plan);
    const at = this.combineBufferAddress(handle) - this.#window.storage.address;
    return Promise.resolve(new Tensor(this.#window.storage, 'bf16', rowShape(this.#scope), at));
  }

  combine(input: CheckedLowLatencyCombine, wait: LowLatencyWait): Promise<Tensor<'bf16'>> {
    const out = this.#outOf(input);
    this.#launchCombine({ input, out, number: this.#nextCombine(input) }, { wait, phases: BOTH });
    return Promise.resolve(out);
  }

  sendCombine(input: CheckedLowLatencyCombine, wait: LowLatencyWait): Promise<SentCombine> {
    const out = this.#outOf(input);
    const sent = { input, out, number: this.#nextCombine(input) };
    this.#launchCombine(sent, { wait, phases: SEND });
    return Promise.resolve(sent);
  }

  receiveCombine(sent: SentCombine, wait: LowLatencyWait): Promise<Tensor<'bf16'>> {
    this.#launchCombine(sent, { wait, phases: RECEIVE });
    return Promise.resolve(sent.out);
  }

  /** The host waits for the device, then for the other ranks: afterwards nothing of this object runs anywhere. */
  async barrier(wait: LowLatencyWait): Promise<void> {
    await this.#scope.device.stream.idle(remaining(wait));
    this.throwIfUnusable();
    await this.#scope.group.barrier('low-latency', remaining(wait));
  }

  async close(): Promise<void> {
    // Kernels that still run use the window.
    await this.#scope.device.stream.drained().catch(() => {});
    await this.#elastic?.close();
    // What this rank has sent, peers may still wait for.
    await this.#network?.close();
    for (const memory of [...this.#own, ...this.#outgrown]) memory?.close();
    for (const part of [this.#order, this.#tables, this.#calls, this.#window]) part[Symbol.dispose]();
  }

  /** Kernels count combines themselves where ranks are fixed. */
  #nextCombine({ handle }: CheckedLowLatencyCombine): number {
    return this.#elastic?.nextCombine(handle) ?? 0;
  }

  #outOf({ out, handle }: CheckedLowLatencyCombine): Tensor<'bf16'> {
    return out ?? this.#scope.device.empty('bf16', [handle.numTokens, this.#scope.config.hidden]);
  }

  #launchDispatch(plan: DispatchPlan, { wait, phases }: Launch): void {
    const set = plan.arguments;
    set.set('timeoutNs', this.#calls.timeoutNs(wait));
    set.set('phases', phases);
    this.#launch(plan);
  }

  /** The first half of a dispatch. Other hosts come first: their rows have the longest way. */
  #launchSending(input: CheckedLowLatencyDispatch, sequence: number, wait: LowLatencyWait): void {
    const plan = this.#setDispatch(input, sequence);
    const hosts = this.#launches.hosts?.[formOf(input)];
    if (hosts !== undefined) {
      this.#network?.wake();
      this.#launchDispatch(hosts.send, { wait, phases: SEND });
      this.#addRelay(input, (until, isOwn) => {
        const { arguments: set } = this.#setDispatch(input, sequence);
        set.set('waitStats', isOwn ? (input.waitStats?.address ?? 0) : 0);
        this.#launchDispatch(hosts.forward, { wait: until, phases: RECEIVE });
      });
    }
    this.#launchDispatch(plan, { wait, phases: SEND });
  }

  #addRelay(call: object, launch: Relay['launch']): void {
    this.#relays.push({ call, launch, recording: recordingOf(this.#scope.device.context) });
  }

  /**
   * Before this rank waits for what a call brings it, it does its part for others in that call and in those before it, in the order
   * of calls: others count what comes in that order, and where each rank waited first for another call they would wait in a circle.
   * `last`: the call; undefined for all. What was recorded belongs to its graph, or comes behind the launch of that.
   */
  #relayUntil(last: object | undefined, wait: LowLatencyWait): void {
    this.#network?.wake();
    const relays = this.#relays;
    if (relays.length === 0) return;
    const until = last === undefined ? relays.length - 1 : relays.findIndex(({ call }) => call === last);
    const recording = recordingOf(this.#scope.device.context);
    for (let left = until + 1, at = 0; left > 0; left--) {
      const relay = relays[at]!;
      const isOwn = relay.call === last;
      if (!isOwn && relay.recording !== recording) {
        at++;
        continue;
      }
      relays.splice(at, 1);
      // Only its hook looks whether the tensors of another call are still there.
      relay.launch(wait, isOwn);
    }
  }

  /** What a graph waits for may come behind what the calls before its launch bring. What no graph receives of it is passed on later. */
  #beforeLaunch(recording: object): void {
    const { settings } = this.#scope.group;
    this.#relayUntil(undefined, { deadline: deadlineOf({}, settings.timeoutMs), signal: undefined });
    for (const relay of this.#relays) if (relay.recording === recording) relay.recording = undefined;
  }

  #launch(plan: LaunchPlan): void {
    this.#calls.record(this.#recording);
    plan.launch(this.#order.begin(IN_TURN));
    this.#order.end(IN_TURN);
  }

  #launchReceiving(input: CheckedLowLatencyDispatch, sequence: number, launch: Launch): LowLatencyDispatchResult {
    const { wait } = launch;
    const isAcross = this.#launches.hosts !== undefined;
    if (isAcross && (launch.phases & SEND) !== 0) this.#launchSending(input, sequence, wait);
    this.#relayUntil(input, wait);
    const plan = this.#setDispatch(input, sequence);
    const set = plan.arguments;
    const rows = input.out ?? this.#rowsOf(input.scales, sequence);
    const [data, scales] = 'data' in rows ? [rows.data, rows.scales] : [rows, undefined];
    set.set('rows', data.address);
    set.set('scales', scales?.address ?? 0);
    set.set('expertStats', input.expertStats?.address ?? 0);
    set.set('waitStats', input.waitStats?.address ?? 0);
    this.#launchDispatch(plan, isAcross ? { wait, phases: RECEIVE } : launch);
    return this.#resultOf(input, sequence, rows);
  }

  /** What both halves of a dispatch work with. */
  #setDispatch(input: CheckedLowLatencyDispatch, sequence: number): DispatchPlan {
    const { x, topkIdx, topkWeights, scales } = input;
    const plan = this.#launches.dispatch[formOf(input)];
    const set = plan.arguments;
    const slot = this.#slotOf(sequence);
    const tables = this.#tablesOf(sequence);
    const [tokens, columns] = topkIdx.shape as [number, number];
    set.set('x', x.address);
    set.set('topk', topkIdx.address);
    set.set('weights', topkWeights?.address ?? 0);
    set.set('tokens', tokens);
    set.set('topkColumns', columns);
    set.set('indexBytes', dtypes[topkIdx.dtype].bytes);
    set.set('scaleKind', scales === undefined ? 0 : lowLatencyScales[scales]);
    set.set('slot', slot);
    set.set('call', dispatchWord(input));
    const doWordsShow = scales !== undefined && this.#scope.size.regions.fp8Rows.bytes > 0;
    set.set('rowsOffset', this.#offset(doWordsShow ? 'fp8Rows' : 'rows', slot));
    set.set('scalesOffset', this.#offset('scales', slot));
    set.set('sourcesOffset', this.#offset('sourceToken', slot));
    set.set('choicesOffset', this.#offset(this.#isRankMajor ? 'topkIdx' : 'choices', slot));
    set.set('weightsOffset', this.#offset('topkWeights', slot));
    set.set('countsOffset', this.#offset('expertCounts', 0));
    set.set('firstRowsOffset', this.#offset('firstRows', sequence % LOW_LATENCY_RESULTS));
    for (const name of ['sentRows', 'arrived', 'counts', 'dropped', 'ranges', 'sources'] as const) {
      set.set(name, tables[name].address);
    }
    for (const name of ['sentPlaces', 'rowOf', 'rowWeights'] as const) set.set(name, addressOf(tables[name]));
    for (const name of ['sentWays', 'servedRows', 'servedCounts'] as const) set.set(name, addressOf(tables[name]));
    this.#elastic?.setDispatch(plan, sequence);
    return plan;
  }

  #launchCombine(sent: SentCombine, launch: Launch): void {
    const { hosts } = this.#launches;
    if (hosts === undefined) this.#launch(this.#setCombine(sent, launch));
    else this.#combineAcross(sent, launch, hosts.sums);
    if ((launch.phases & SEND) !== 0) this.#elastic?.countCombine(sent.input.handle, sent.number);
  }

  #combineAcross(sent: SentCombine, { wait, phases }: Launch, sums: LaunchPlan): void {
    if ((phases & SEND) !== 0) {
      this.#launch(this.#setCombine(sent, { wait, phases: SEND }));
      this.#addRelay(sent, (until, isOwn) => {
        const { arguments: set } = this.#setCombine(sent, { wait: until, phases: RECEIVE });
        if (!isOwn) set.set('waitStats', 0);
        this.#launch(sums);
      });
    }
    if ((phases & RECEIVE) === 0) return;
    this.#relayUntil(sent, wait);
    this.#launch(this.#setCombine(sent, { wait, phases: RECEIVE }));
  }

  #setCombine({ input, out, number }: SentCombine, { wait, phases }: Launch): LowLatencyLaunches['combine'] {
    const { x, handle, topkWeights, waitStats } = input;
    const plan = this.#launches.combine;
    const set = plan.arguments;
    const result = handle.sequence % LOW_LATENCY_RESULTS;
    const tables = this.#tablesOf(handle.sequence);
    const isInPlace = readsInPlace(this.#scope) && x.address === this.combineBufferAddress(handle);
    set.set('y', x.address);
    set.set('out', out.address);
    set.set('weights', topkWeights?.address ?? 0);
    set.set('sentRows', tables.sentRows.address);
    for (const name of ['sentPlaces', 'rowOf', 'rowWeights'] as const) set.set(name, addressOf(tables[name]));
    for (const name of ['sentWays', 'servedRows', 'servedCounts'] as const) set.set(name, addressOf(tables[name]));
    set.set('counts', (this.#isByChoice ? tables.counts : tables.arrived).address);
    set.set('waitStats', (phases & RECEIVE) === 0 ? 0 : (waitStats?.address ?? 0));
    set.set('tokens', handle.numTokens);
    set.set('topkColumns', handle.topk);
    set.set('rowsOffset', this.#offset('combineRows', result));
    set.set('firstRowsOffset', this.#offset('firstRows', result));
    set.set('inPlace', Number(isInPlace));
    set.set('result', result);
    set.set('call', combineWord(handle.sequence));
    set.set('phases', phases);
    set.set('timeoutNs', this.#calls.timeoutNs(wait));
    this.#elastic?.setCombine(plan, handle, number);
    return plan;
  }

  #resultOf(input: CheckedLowLatencyDispatch, sequence: number, rows: LowLatencyRows): LowLatencyDispatchResult {
    const { config, group } = this.#scope;
    const { topkIdx, topkWeights } = input;
    const [numTokens, topk] = topkIdx.shape as [number, number];
    const slot = this.#slotOf(sequence);
    const { arrived, counts, dropped, ranges, sources } = this.#tablesOf(sequence);
    const handle = { owner: this.#scope, sequence, numTokens, topk };
    const elastic = this.#elastic && { activeMask: this.#elastic.received(sequence) };
    if (!this.#isRankMajor) {
      return {
        recvX: rows,
        recvCount: counts,
        dropped,
        recvTopkIdx: undefined,
        recvTopkWeights: undefined,
        handle: new LowLatencyHandle({ ...handle, recvSrcIdx: sources, recvRange: ranges }),
        ...elastic,
      };
    }
    const shape = [group.size, config.maxTokensPerRank];
    const recvSrcIdx = this.#view('i32', 'sourceToken', slot, shape);
    return {
      recvX: rows,
      recvCount: arrived,
      dropped: undefined,
      recvTopkIdx: this.#view(topkIdx.dtype, 'topkIdx', slot, [...shape, topk]),
      recvTopkWeights: topkWeights && this.#view('f32', 'topkWeights', slot, [...shape, topk]),
      handle: new LowLatencyHandle({ ...handle, recvSrcIdx, recvRange: undefined }),
      ...elastic,
    };
  }

  #rowsOf(scales: LowLatencyScales | undefined, sequence: number): LowLatencyRows {
    const shape = rowShape(this.#scope);
    const slot = this.#slotOf(sequence);
    const own = this.#own[sequence % LOW_LATENCY_RESULTS];
    const storage = own?.storage ?? this.#window.storage;
    const begin = this.#isRankMajor ? this.#offset('rows', slot) : 0;
    if (scales === undefined) return new Tensor(storage, 'bf16', shape, begin);
    const data = new Tensor(storage, 'fp8e4m3', shape, begin);
    const behind = this.#isRankMajor ? this.#offset('scales', slot) : data.bytes;
    return { data, scales: new Tensor(storage, scalesDtype(scales), scaleShape(this.#scope, scales), behind) };
  }

  #view<D extends DType>(dtype: D, region: LowLatencyRegion, slot: number, shape: readonly number[]): Tensor<D> {
    return new Tensor(this.#window.storage, dtype, shape, this.#offset(region, slot));
  }

  #slotOf(sequence: number): number {
    return sequence % this.#scope.size.receiveSlots;
  }

  #tablesOf(sequence: number): CudaResultTables {
    return this.#tables.results[sequence % LOW_LATENCY_RESULTS] as CudaResultTables;
  }

  /** Offset of a slot from the start of a window. */
  #offset(region: LowLatencyRegion, slot: number): number {
    const { offset, stride } = this.#scope.size.regions[region];
    return offset + slot * stride;
  }
}

/** What this rank does for other hosts in a call that it has sent: it forwards their rows, or adds up what its host has of theirs. */
interface Relay {
  /** The arguments of the call. */
  readonly call: object;
  /** The recording in which it was sent; undefined once its graph was launched. */
  recording: object | undefined;
  /** `isOwn`: for the second half of the same call. */
  readonly launch: (wait: LowLatencyWait, isOwn: boolean) => void;
}

/** The form in which a dispatch sends rows. */
function formOf({ scales }: CheckedLowLatencyDispatch): 'bf16' | 'fp8' {
  return scales === undefined ? 'bf16' : 'fp8';
}

interface Launch {
  readonly wait: LowLatencyWait;
  /** Sum of lowLatencyPhases. */
  readonly phases: number;
}

/** Null for a table that nobody asks for. */
function addressOf(table: Tensor): number {
  return table.elements === 0 ? 0 : table.address;
}
