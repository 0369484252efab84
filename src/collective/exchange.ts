// The count exchange: every rank writes what it is about to send into every window; after a barrier all know all.
import { WeftlineError } from '../core/errors.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { SymmetricWindow } from '../windows/symmetric-window.ts';
import {
  EXCHANGE_HEADER_WORDS,
  EXCHANGE_STATUS_WORD,
  exchangeFields,
  exchangeOwnFields,
  exchangeRecordBytes,
} from '../abi/exchange-record.ts';

export type ExchangeHeader = Record<(typeof exchangeFields)[number] | (typeof exchangeOwnFields)[number], number>;

export interface ExchangeResult {
  /** numTokens of each source rank. */
  readonly numTokens: Int32Array;
  readonly rowBound: Int32Array;
  /** perRank[s * n + d]: rows that rank s sends to rank d, each token once. */
  readonly perRank: Int32Array;
  /** perExpert[s * E + e]: choices of expert e by rank s. */
  readonly perExpert: Int32Array;
}

export class CountExchange {
  /**
   * [parity][destination][source]. Two sets, used in turn: a rank that failed right after a barrier may publish its next
   * call while a slow peer still reads this one, but cannot pass the next barrier without that peer.
   */
  readonly #sets: readonly (readonly Int32Array[][])[];
  #parity = 0;
  readonly #ranks: number;
  readonly #experts: number;
  readonly #self: number;
  readonly #worldRanks: readonly number[];

  /** `offset`: where the exchange region starts in each window. */
  constructor(device: CpuDevice, window: SymmetricWindow, region: { offset: number; experts: number }) {
    this.#ranks = window.ranks.length;
    this.#experts = region.experts;
    this.#self = window.index;
    this.#worldRanks = window.ranks;
    const bytes = exchangeRecordBytes(this.#ranks, this.#experts);
    this.#sets = [0, 1].map((parity) =>
      window.addresses.map((address) =>
        window.ranks.map((_, source) => {
          const offset = region.offset + (parity * this.#ranks + source) * bytes;
          return device.hostView('i32', address + offset, bytes / 4);
        }),
      ),
    );
  }

  /** Writes this rank's record into every window. A barrier must follow before collect(). */
  publish(header: ExchangeHeader, perRank: Int32Array, perExpert: Int32Array): void {
    this.#parity ^= 1;
    for (const records of this.#destinations()) {
      const record = records[this.#self] as Int32Array;
      let word = 0;
      for (const field of exchangeFields) record[word++] = header[field];
      for (const field of exchangeOwnFields) record[word++] = header[field];
      record.set(perRank, EXCHANGE_HEADER_WORDS);
      record.set(perExpert, EXCHANGE_HEADER_WORDS + this.#ranks);
    }
  }

  /** All ranks' records, after the barrier. Every rank fails with the same WL_CONFIG_MISMATCH if they disagree. */
  collect(): ExchangeResult {
    const n = this.#ranks;
    const records = this.#received();
    this.#compare(records);
    const result = {
      numTokens: new Int32Array(n),
      rowBound: new Int32Array(n),
      perRank: new Int32Array(n * n),
      perExpert: new Int32Array(n * this.#experts),
    };
    for (const [source, record] of records.entries()) {
      result.numTokens[source] = record[exchangeFields.length]!;
      result.rowBound[source] = record[exchangeFields.length + 1]!;
      const counts = EXCHANGE_HEADER_WORDS;
      result.perRank.set(record.subarray(counts, counts + n), source * n);
      result.perExpert.set(record.subarray(counts + n, counts + n + this.#experts), source * this.#experts);
    }
    return result;
  }

  /** Tells everyone how a step went here: 0 good, else a code of the caller's. A barrier must follow before statuses(). */
  publishStatus(status: number): void {
    for (const records of this.#destinations()) (records[this.#self] as Int32Array)[EXCHANGE_STATUS_WORD] = status;
  }

  statuses(): number[] {
    return this.#received().map((record) => record[EXCHANGE_STATUS_WORD]!);
  }

  #destinations(): readonly Int32Array[][] {
    return this.#sets[this.#parity] as readonly Int32Array[][];
  }

  /** The records of all sources in this rank's own window. */
  #received(): readonly Int32Array[] {
    return this.#destinations()[this.#self] as readonly Int32Array[];
  }

  #compare(records: readonly Int32Array[]): void {
    const first = records[0] as Int32Array;
    for (const [word, field] of exchangeFields.entries()) {
      const other = records.findIndex((record) => record[word] !== first[word]);
      if (other === -1) continue;
      const [firstRank, rank] = [this.#worldRanks[0], this.#worldRanks[other]];
      throw new WeftlineError(
        'WL_CONFIG_MISMATCH',
        `The ranks disagree on ${field}: ${first[word]} on rank ${firstRank}, ${records[other]?.[word]} on rank ${rank}; all must pass the same kind of tensors`,
        { details: { field, rank, rank0: first[word], other: records[other]?.[word] } },
      );
    }
  }
}
