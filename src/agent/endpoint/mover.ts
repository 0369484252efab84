// Moves what two lists describe to or from one peer: prepares, posts while there is room, waits, keeps for the next time.
import { WeftlineError } from '../../core/errors.ts';
import { type WaitFacts, whileWaiting } from '../../core/waits.ts';
import type { Agent } from '../agent.ts';
import type { TransferOperation } from '../backend.ts';
import type { BackendName } from '../backends/backend-table.ts';
import type { Transfer } from '../transfer.ts';
import { KeptTransfers, type Ways } from './kept-transfers.ts';

interface MoverOptions {
  readonly agent: Agent;
  readonly peer: string;
  readonly backend: BackendName;
  /** The peer, for errors. */
  readonly who: string;
  /** Resolves when all memory of which the peer has told is known. */
  readonly learned: () => Promise<void>;
}

const RETRY_MS = 1;
/** A transfer that is kept may name memory that was taken back and registered again since. */
const OUTDATED: readonly string[] = ['WL_CLOSED', 'WL_UNAUTHORIZED'];

export class Mover {
  readonly #options: MoverOptions;
  readonly #kept = new KeptTransfers();
  #isClosed = false;

  constructor(options: MoverOptions) {
    this.#options = options;
  }

  /** Resolves when everything lies where it belongs. The message follows it; if this fails, none does. */
  async move(operation: TransferOperation, ways: Ways, message: Uint8Array | undefined): Promise<void> {
    const kept = this.#kept.take(operation, ways);
    const transfer =
      (kept === undefined ? undefined : await this.#runAgain(kept, message)) ??
      (await this.#run(await this.#prepare(operation, ways), message));
    // The end is reported before the transfer is put away.
    const putAway = this.#isClosed ? transfer.release() : this.#kept.keep(operation, ways, transfer);
    putAway.catch(() => {});
  }

  /** Tries again while there is no room. Fails with WL_TIMEOUT when the time of the settings is over. */
  async patiently(attempt: () => void | Promise<void>): Promise<void> {
    try {
      // Work that need not wait takes no turn of the event loop.
      const attempted = attempt();
      if (attempted !== undefined) await attempted;
    } catch (error) {
      const { agent, peer, who } = this.#options;
      const describe = (): WaitFacts => ({ operation: `room on the way to ${who}`, peers: [peer] });
      await whileWaiting(this.#tryAgain(attempt, error), describe, performance.now() + agent.settings.timeoutMs);
    }
  }

  /** Releases the kept transfers that use memory of this side in a range. */
  releaseWithin(address: number, bytes: number): Promise<void> {
    return this.#kept.releaseWithin(address, bytes);
  }

  /** Nothing is kept or tried again from now on. What is under way ends by itself. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#kept.releaseAll().catch(() => {});
  }

  async #tryAgain(attempt: () => void | Promise<void>, first: unknown): Promise<void> {
    const { agent, peer, who } = this.#options;
    const { timeoutMs } = agent.settings;
    const end = performance.now() + timeoutMs;
    for (let error = first; ;) {
      if (!(error instanceof WeftlineError) || error.code !== 'WL_BUSY' || this.#isClosed) throw error;
      if (performance.now() > end) {
        const why = `Waited ${timeoutMs} ms for room on the way to ${who}: ${error.message}`;
        throw new WeftlineError('WL_TIMEOUT', why, { details: { peer, timeoutMs }, cause: error });
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      try {
        return await attempt();
      } catch (again) {
        error = again;
      }
    }
  }

  async #prepare(operation: TransferOperation, ways: Ways): Promise<Transfer> {
    await this.#options.learned();
    const { agent, peer, backend } = this.#options;
    return agent.prepare({ operation, peer, backend, ...ways });
  }

  /** Undefined if the transfer must be prepared anew. */
  async #runAgain(transfer: Transfer, message: Uint8Array | undefined): Promise<Transfer | undefined> {
    try {
      return await this.#run(transfer, message);
    } catch (error) {
      if (!this.#isClosed && error instanceof WeftlineError && OUTDATED.includes(error.code)) return undefined;
      throw error;
    }
  }

  /** A transfer that fails is released before the error is told: nothing of it comes later. */
  async #run(transfer: Transfer, message: Uint8Array | undefined): Promise<Transfer> {
    try {
      await this.patiently(() => transfer.post(message));
      await transfer.wait();
      return transfer;
    } catch (error) {
      await transfer.release().catch(() => {});
      throw error;
    }
  }
}
