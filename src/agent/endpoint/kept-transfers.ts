// Prepared transfers that are kept for the next message between the same places.
import type { TransferOperation } from '../backend.ts';
import type { DescriptorList } from '../descriptors.ts';
import type { Transfer } from '../transfer.ts';

/** Entry i of one side goes with entry i of the other, and has its size. */
export interface Ways {
  readonly local: DescriptorList;
  readonly remote: DescriptorList;
}

interface Kept extends Ways {
  readonly operation: TransferOperation;
  readonly transfer: Transfer;
}

const MAX_KEPT = 256;
/** Of one transfer. To prepare a longer one costs little beside moving its parts, and it takes memory. */
const MAX_PARTS = 1024;

export class KeptTransfers {
  /** By a hash of their places, oldest first. Of transfers whose hashes are equal, one is kept. */
  readonly #kept = new Map<number, Kept>();

  /** One between exactly these places, which is the caller's from now on. */
  take(operation: TransferOperation, ways: Ways): Transfer | undefined {
    if (ways.local.length > MAX_PARTS) return undefined;
    const hash = hashOf(operation, ways);
    const found = this.#kept.get(hash);
    if (found === undefined || found.operation !== operation || !areSame(found, ways)) return undefined;
    this.#kept.delete(hash);
    return found.transfer;
  }

  /** Keeps an idle one, or releases it. */
  async keep(operation: TransferOperation, ways: Ways, transfer: Transfer): Promise<void> {
    if (ways.local.length > MAX_PARTS) return transfer.release();
    const hash = hashOf(operation, ways);
    if (this.#kept.has(hash)) return transfer.release();
    this.#kept.set(hash, { operation, local: ways.local, remote: ways.remote, transfer });
    if (this.#kept.size <= MAX_KEPT) return undefined;
    const [oldest, idle] = this.#kept.entries().next().value as [number, Kept];
    this.#kept.delete(oldest);
    return idle.transfer.release();
  }

  /** Those that use memory of this side in a range. */
  async releaseWithin(address: number, bytes: number): Promise<void> {
    const gone = [...this.#kept].filter(([, { local }]) =>
      local.addresses.some((begin) => begin >= address && begin < address + bytes),
    );
    for (const [hash] of gone) this.#kept.delete(hash);
    await Promise.all(gone.map(([, { transfer }]) => transfer.release()));
  }

  async releaseAll(): Promise<void> {
    const all = [...this.#kept.values()];
    this.#kept.clear();
    await Promise.all(all.map(({ transfer }) => transfer.release()));
  }
}

function areSame(one: Ways, other: Ways): boolean {
  return (
    areEqual(one.local.addresses, other.local.addresses) &&
    areEqual(one.local.lengths, other.local.lengths) &&
    areEqual(one.remote.addresses, other.remote.addresses)
  );
}

function areEqual(one: Float64Array, other: Float64Array): boolean {
  if (one.length !== other.length) return false;
  for (let at = 0; at < one.length; at++) if (one[at] !== other[at]) return false;
  return true;
}

/** FNV-1a over the numbers' low and high halves. */
function hashOf(operation: TransferOperation, { local, remote }: Ways): number {
  let hash = operation === 'read' ? 1 : 2;
  for (const numbers of [local.addresses, local.lengths, remote.addresses]) {
    for (let at = 0; at < numbers.length; at++) {
      const number = numbers[at]!;
      hash = Math.imul(hash ^ (number | 0), 0x0100_0193);
      hash = Math.imul(hash ^ (number / 2 ** 32), 0x0100_0193);
    }
  }
  return hash;
}
