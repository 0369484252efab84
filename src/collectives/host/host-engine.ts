// Collectives of CPU ranks of one host: through slots and channels in the window that they share.
import { availableParallelism } from 'node:os';
import type { CallWait } from '../../core/deadline.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { SymmetricWindow } from '../../windows/symmetric-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { type CollectiveCall, makeCollectiveCall } from '../collective-call.ts';
import type { CollectiveEngine, PairMessage, Route } from '../collective-engine.ts';
import { PairMessages } from './pair-messages.ts';
import { RankBoard } from './rank-board.ts';
import { StagedCall } from './staged-call.ts';
import { StepRunner } from './steps.ts';
import type { CollectiveRegions } from './window-regions.ts';

/** What an engine is made of, and owns. */
export interface HostEngineParts {
  readonly group: RankGroup;
  readonly device: CpuDevice;
  readonly window: SymmetricWindow;
  readonly regions: CollectiveRegions;
}

export class HostEngine implements CollectiveEngine {
  readonly routes: readonly Route[];
  readonly #window: SymmetricWindow;
  readonly #staged: StagedCall;
  readonly #pairs: PairMessages;
  readonly #runner: StepRunner;

  constructor({ group, device, window, regions }: HostEngineParts) {
    const board = new RankBoard(device, window, regions);
    this.#window = window;
    this.routes = window.ranks.map((_, rank) => (rank === window.index ? 'self' : 'window'));
    this.#staged = new StagedCall(device, { window, board, regions, idle: makeCollectiveCall(group.size) });
    this.#pairs = new PairMessages(device, { window, board, regions });
    const { timeoutMs, collectiveSpinUs: spinUs } = group.settings;
    const isCrowded = group.size > availableParallelism();
    this.#runner = new StepRunner(board, { failure: window.barrier.failure, timeoutMs, spinUs, isCrowded });
  }

  throwIfUnusable(): void {
    this.#window.barrier.throwIfUnusable();
  }

  run(call: CollectiveCall, wait: CallWait): Promise<void> | undefined {
    this.#staged.begin(call);
    return this.#runner.run(this.#staged, wait);
  }

  exchange(messages: readonly PairMessage[], wait: CallWait): Promise<void> | undefined {
    this.#pairs.begin(messages);
    return this.#runner.run(this.#pairs, wait);
  }

  close(): void {
    this.#window[Symbol.dispose]();
    this.#staged[Symbol.dispose]();
  }
}
