// The calls of an elastic EpLowLatency on a GPU: what their kernels need to know, and when the host hears that its rank is out.
import { LOW_LATENCY_RESULTS } from '../../../abi/low-latency.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { pollUntil } from '../../../device/cuda/cuda-event.ts';
import { Tensor } from '../../../device/tensor.ts';
import type { LowLatencyHandle, LowLatencyShortfall } from '../low-latency-results.ts';
import type { LowLatencyScope } from '../low-latency-size.ts';
import { CombineNumbers } from '../members/low-latency-cells.ts';
import { LowLatencyJoining } from '../members/low-latency-joining.ts';
import type { CombinePlan, CudaLowLatencyTables, CudaResultTables, DispatchPlan } from './low-latency-launches.ts';
import type { MemberBoard, PeerWindows } from './peer-windows.ts';

/** How often this rank looks whether processes of others have come or gone. */
const LOOK_MS = 10;
/** How long a rank that leaves waits until nobody has its window mapped. */
const LEAVE_MS = 1_000;

export interface ElasticParts {
  readonly board: MemberBoard;
  readonly windows: PeerWindows;
}

export class ElasticCalls {
  readonly membership: LowLatencyJoining;
  readonly #scope: LowLatencyScope<CudaDevice>;
  readonly #parts: ElasticParts;
  readonly #tables: CudaLowLatencyTables;
  readonly #combines = new CombineNumbers(true);
  readonly #stopJudging: () => void;
  readonly #timer: NodeJS.Timeout;
  /** Number of the last dispatch that was begun. */
  #dispatch = 0;
  /** Number of the last launch. */
  #stamp = 0;
  /** Calls were enqueued since this rank was last told that it is out. */
  #hasCalls = false;

  constructor(scope: LowLatencyScope<CudaDevice>, parts: ElasticParts, tables: CudaLowLatencyTables) {
    this.#scope = scope;
    this.#parts = parts;
    this.#tables = tables;
    const { board } = parts;
    this.membership = new LowLatencyJoining({
      group: scope.group,
      window: board.window,
      cells: board.cells,
      members: board.members,
      engine: {
        dispatch: () => this.#dispatch,
        prepare: () => this.#prepareToJoin(),
        isMapped: (rank) => parts.windows.isMapped(rank),
        beginAt: (dispatch) => this.#beginAt(dispatch),
        shortfall: (handle) => this.#shortfall(handle),
      },
    });
    this.#stopJudging = scope.device.context.judgeWaits(() => this.#judge());
    this.#timer = setInterval(() => parts.windows.tryLook(), LOOK_MS);
    this.#timer.unref();
  }

  /** Fails with WL_INACTIVE unless this rank takes part, WL_UNSUPPORTED in a recording. */
  requireActive(dispatch: number = this.#dispatch): void {
    // A graph repeats the slots that it was recorded with; a rank that joins later would have recorded others.
    this.#scope.device.context.refuseCapture('a call of an elastic EpLowLatency');
    const reason = this.#parts.board.window.barrier.failure.reason();
    if (reason !== undefined) throw reason;
    this.#parts.board.members.requireActive(dispatch);
  }

  /** The first half of a dispatch is about to be launched. */
  beginDispatch(dispatch: number): void {
    const { board } = this.#parts;
    this.#dispatch = dispatch;
    this.#combines.beginDispatch(dispatch);
    board.members.refresh(dispatch);
    this.membership.progress();
    board.cells.publish('dispatched', dispatch);
  }

  setDispatch({ arguments: set }: DispatchPlan, dispatch: number): void {
    const { receiveSlots } = this.#scope.size;
    const { received, keptChoices } = this.#resultOf(dispatch);
    set.set('stamp', this.#nextStamp());
    set.set('number', dispatch);
    set.set('releasedSlot', (dispatch + receiveSlots - LOW_LATENCY_RESULTS) % receiveSlots);
    set.set('activeMask', received.address);
    set.set('keptChoices', keptChoices.address);
  }

  received(dispatch: number): Tensor<'i32'> {
    return this.#resultOf(dispatch).received;
  }

  /** The number of a combine that begins now. Fails with WL_CAPACITY. */
  nextCombine({ sequence }: LowLatencyHandle): number {
    return this.#combines.next(sequence);
  }

  /** `number` of the combine; 0 where only its memory is waited for. */
  setCombine({ arguments: set }: CombinePlan, { sequence }: LowLatencyHandle, number: number): void {
    const { added, keptChoices, droppedChoices } = this.#resultOf(sequence);
    const before = this.#combines.before(sequence);
    set.set('stamp', this.#nextStamp());
    set.set('number', number);
    set.set('dispatch', sequence);
    set.set('before', before.number);
    set.set('beforeDispatch', before.dispatch);
    set.set('activeMask', added.address);
    set.set('keptChoices', keptChoices.address);
    set.set('droppedChoices', droppedChoices.address);
  }

  /** The first half of that combine was launched. */
  countCombine({ sequence }: LowLatencyHandle, number: number): void {
    this.#combines.use(sequence, number);
  }

  /** Kernels of this rank cannot go on: the others go on without it. */
  giveUp(): void {
    this.#parts.board.members.mask(this.#parts.board.window.index);
  }

  /** The stream must be idle. The others go on without this rank, and let go of its window. */
  async close(): Promise<void> {
    const { board, windows } = this.#parts;
    clearInterval(this.#timer);
    this.#stopJudging();
    this.membership.close(new WeftlineError('WL_CLOSED', 'This EpLowLatency was closed'));
    board.members.mask(board.window.index);
    windows.leave();
    // CUDA says nothing of memory that is freed while others have it mapped. One that has stopped cannot be waited for.
    const isFree = { timeoutMs: LEAVE_MS, what: 'the unmapping of a window' };
    await pollUntil(() => !windows.isInUse, isFree).catch(() => {});
    windows[Symbol.dispose]();
    board[Symbol.dispose]();
  }

  /** Called at each look of a wait for the device: what is waited for may be results of kernels that have left. */
  #judge(): void {
    if (!this.#hasCalls) return;
    const inactive = this.#parts.board.members.inactive(this.#dispatch);
    if (inactive === undefined) return;
    // Once: what the rank does besides can be waited for.
    this.#hasCalls = false;
    throw inactive;
  }

  #nextStamp(): number {
    this.#hasCalls = true;
    this.#stamp = this.#stamp === 0xffff_ffff ? 1 : this.#stamp + 1;
    return this.#stamp;
  }

  /** Its kernels that are still on their way find that it is out; behind them it can begin anew. */
  async #prepareToJoin(): Promise<void> {
    const { board, windows } = this.#parts;
    board.members.mask(board.window.index);
    this.#hasCalls = false;
    await this.#scope.device.stream.drained();
    windows.tryLook();
  }

  #beginAt(dispatch: number): void {
    this.#dispatch = dispatch;
    this.#combines.beginAnew();
  }

  #shortfall({ sequence, numTokens }: LowLatencyHandle): LowLatencyShortfall {
    const { added, droppedChoices } = this.#resultOf(sequence);
    const { storage, address } = droppedChoices;
    return { activeMask: added, droppedChoices: new Tensor(storage, 'i32', [numTokens], address - storage.address) };
  }

  #resultOf(dispatch: number): CudaResultTables {
    return this.#tables.results[dispatch % LOW_LATENCY_RESULTS] as CudaResultTables;
  }
}
