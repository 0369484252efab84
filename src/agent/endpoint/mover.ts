// Moves what two lists describe to or from one peer: prepares, posts while there is room, waits, keeps for the next time.
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { type WaitFacts, whileWaiting } from '../../core/waits.ts';
import type { Agent } from '../agent.ts';
import type { TransferOperation } from '../backend.ts';
import type { BackendName } from '../backends/backend-table.ts';
import { checkPart, DescriptorList, restOf } from '../descriptors.ts';
import type { Registration } from '../registration.ts';
import type { Transfer } from '../transfer.ts';

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
    const places = placesOf(operation, ways);
    const kept = places === undefined ? undefined : this.#kept.take(places);
    let transfer = kept && (await this.#runAgain(kept, message));
    if (transfer === undefined) {
      await this.#options.learned();
      const { agent, peer, backend } = this.#options;
      transfer = await this.#run(await agent.prepare({ operation, peer, backend, ...ways }), message);
    }
    // The end is reported before the transfer is put away.
    const isKept = places !== undefined && !this.#isClosed;
    const putAway = isKept ? this.#kept.keep(places, { local: ways.local, transfer }) : transfer.close();
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
      await transfer.close().catch(() => {});
      throw error;
    }
  }
}

// Prepared transfers that are kept for the next message between the same places.

/** Entry i of one side goes with entry i of the other, and has its size. */
export interface Ways {
  readonly local: DescriptorList;
  readonly remote: DescriptorList;
}

interface Kept {
  readonly local: DescriptorList;
  readonly transfer: Transfer;
}

const MAX_KEPT = 256;
/** Parts of one transfer. To prepare a longer one costs little beside moving its parts, and it takes memory. */
const MAX_PARTS = 1024;

class KeptTransfers {
  /** Transfers by their places, oldest first. */
  readonly #kept = new Map<string, Kept>();

  /** One between exactly these places, which is the caller's from now on. */
  take(places: string): Transfer | undefined {
    const found = this.#kept.get(places);
    this.#kept.delete(places);
    return found?.transfer;
  }

  /** Keeps an idle one, or releases it. */
  async keep(places: string, kept: Kept): Promise<void> {
    if (this.#kept.has(places)) return kept.transfer.close();
    this.#kept.set(places, kept);
    if (this.#kept.size <= MAX_KEPT) return undefined;
    const [oldest, idle] = this.#kept.entries().next().value as [string, Kept];
    this.#kept.delete(oldest);
    return idle.transfer.close();
  }

  /** Releases transfers that use memory of this side in a range. */
  async releaseWithin(address: number, bytes: number): Promise<void> {
    const gone = [...this.#kept].filter(([, { local }]) =>
      local.expand().addresses.some((begin) => begin >= address && begin < address + bytes),
    );
    for (const [places] of gone) this.#kept.delete(places);
    await Promise.all(gone.map(([, { transfer }]) => transfer.close()));
  }

  async releaseAll(): Promise<void> {
    const all = [...this.#kept.values()];
    this.#kept.clear();
    await Promise.all(all.map(({ transfer }) => transfer.close()));
  }
}

/** What tells transfers between the same places from all others, as a text; undefined of one that is too long to keep. */
function placesOf(operation: TransferOperation, { local, remote }: Ways): string | undefined {
  if (local.length > MAX_PARTS) return undefined;
  const { addresses, lengths } = local.expand();
  const columns = [addresses, lengths, remote.expand().addresses];
  const texts = columns.map(({ buffer, byteOffset, byteLength }) =>
    Buffer.from(buffer, byteOffset, byteLength).toString('latin1'),
  );
  return operation + texts.join('');
}

// Parts of memory as endpoints are given them, cut so that each piece here has its piece there.

/** Part of registered memory of this side; all of it by default. */
export interface EndpointPart {
  readonly region: Registration;
  readonly offset?: number;
  readonly bytes?: number;
}

const localPartNames: OptionNames<EndpointPart> = { region: true, offset: true, bytes: true };

/** One part, or several that count as one message (the vectored calls). */
export type EndpointParts = EndpointPart | readonly EndpointPart[];

export function listOf(parts: EndpointParts): DescriptorList {
  if (typeof parts !== 'object' || parts === null) throw invalidArgument('parts', parts, 'a part, or a list of them');
  const list = 'region' in parts ? [parts] : parts;
  const kind = list[0]?.region?.kind;
  if (kind === undefined) throw invalidArgument('parts', parts, 'at least one { region, offset, bytes }');
  const addresses = new Float64Array(list.length);
  const lengths = new Float64Array(list.length);
  let at = 0;
  for (const part of list) {
    checkOptions(part, localPartNames, 'part');
    const { region, offset = 0, bytes = restOf(region, offset) } = part;
    checkPart(region, offset, bytes);
    if (region.kind !== kind) throw invalidArgument('parts', region.kind, `ranges of ${kind} memory`);
    addresses[at] = region.address + offset;
    lengths[at] = bytes;
    at++;
  }
  return new DescriptorList(kind, addresses, lengths);
}

/** Cuts both lists at each other's borders; what `remote` has more than `local` is left out. */
export function cutAlike(
  local: DescriptorList,
  remote: DescriptorList,
): { readonly local: DescriptorList; readonly remote: DescriptorList } {
  // A peer's run of many ranges takes few bytes, and a message that is put there may be short.
  const [ours, theirs] = [local.expand(), remote.expand(local.bytes)];
  if (haveSameCuts(ours.lengths, theirs.lengths)) {
    const addresses = theirs.addresses.subarray(0, local.length);
    return { local, remote: new DescriptorList(remote.kind, addresses, ours.lengths) };
  }
  // Each cut but the last ends an entry of one side at least.
  const most = Math.max(0, local.length + theirs.lengths.length - 1);
  const [from, to, lengths] = [new Float64Array(most), new Float64Array(most), new Float64Array(most)];
  let [here, there, hereAt, thereAt, cuts] = [0, 0, 0, 0, 0];
  while (here < local.length && there < theirs.lengths.length) {
    const hereLeft = ours.lengths[here]! - hereAt;
    const thereLeft = theirs.lengths[there]! - thereAt;
    const bytes = Math.min(hereLeft, thereLeft);
    from[cuts] = ours.addresses[here]! + hereAt;
    to[cuts] = theirs.addresses[there]! + thereAt;
    lengths[cuts] = bytes;
    cuts++;
    [here, hereAt] = bytes === hereLeft ? [here + 1, 0] : [here, hereAt + bytes];
    [there, thereAt] = bytes === thereLeft ? [there + 1, 0] : [there, thereAt + bytes];
  }
  return {
    local: new DescriptorList(local.kind, from.subarray(0, cuts), lengths.subarray(0, cuts)),
    remote: new DescriptorList(remote.kind, to.subarray(0, cuts), lengths.subarray(0, cuts)),
  };
}

/** True if entry i of both sides has the same size, as far as `local` goes; its last one may be the shorter. */
function haveSameCuts(local: Float64Array, remote: Float64Array): boolean {
  const last = local.length - 1;
  if (last < 0 || last >= remote.length) return false;
  for (let index = 0; index < last; index++) if (local[index] !== remote[index]) return false;
  return local[last]! <= remote[last]!;
}
