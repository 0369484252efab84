// The count exchange: every rank writes what it is about to send into every window of its host; after a barrier all know
// all. Records of ranks of other hosts come over the network, into the window of the rank that serves their sender.
import { WeftlineError } from '../core/errors.ts';
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { SymmetricWindow } from '../windows/symmetric-window.ts';
import type { RankGroup } from '../world/rank-group.ts';
import {
  EXCHANGE_CALL_WORD,
  EXCHANGE_HEADER_WORDS,
  EXCHANGE_STATUS_WORD,
  exchangeFields,
  exchangeOwnFields,
  exchangeRecordBytes,
  type ExchangeShape,
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
  /** perHost[s * H + h]: tokens of rank s that go to host h; empty for a group on one host. */
  readonly perHost: Int32Array;
}

/** What a rank is about to send. */
export interface ExchangeCounts {
  readonly perRank: Int32Array;
  readonly perExpert: Int32Array;
  /** Tokens to each host, of a group on several hosts. */
  readonly perHost?: Int32Array;
  /**
   * `perExpert` cut by rank, for a group on one host whose ranks need no counts but of their own experts. The rest of what
   * stands in the record of another rank is then of an earlier call.
   */
  readonly ofRanks?: readonly Int32Array[];
}

/** The place of a record in a window. */
export interface RecordPlace {
  readonly offset: number;
  readonly bytes: number;
}

interface ExchangeOptions extends ExchangeShape {
  /** Offset of the exchange region in each window. */
  readonly offset: number;
  readonly group: RankGroup;
}

export class CountExchange {
  /**
   * [parity][window][source]. Two sets, used in turn: a rank that failed right after a barrier may publish its next
   * call while a slow peer still reads this one, but cannot pass the next barrier without that peer.
   */
  readonly #sets: readonly (readonly Int32Array[][])[];
  /** The set of records, of two, that the present call uses. */
  parity: 0 | 1 = 0;
  readonly #shape: ExchangeShape;
  readonly #offset: number;
  /** This rank in the group, and the number of its window. */
  readonly #self: number;
  readonly #window: number;
  /** The window of this host in which the record of a source comes to lie, by source; -1: every one has it. */
  readonly #holders: readonly number[];
  readonly #worldRanks: readonly number[];
  /** The rank of the group whose each window is. */
  readonly #localRanks: readonly number[];

  constructor(device: CpuDevice, window: SymmetricWindow, { offset, group, ...shape }: ExchangeOptions) {
    const { topology, ranks } = group;
    this.#shape = shape;
    this.#offset = offset;
    this.#self = group.rank;
    this.#window = window.index;
    this.#worldRanks = ranks;
    this.#localRanks = topology.scaleUpRanks;
    const local = window.ranks.length;
    this.#holders = ranks.map((_, source) =>
      topology.hostOf(source) === topology.hostIndex ? -1 : topology.scaleUpIndexOf(source) % local,
    );
    const bytes = exchangeRecordBytes(shape);
    this.#sets = [0, 1].map((parity) =>
      window.addresses.map((address) =>
        ranks.map((_, source) => device.hostView('i32', address + this.#placeOf(parity, source).offset, bytes / 4)),
      ),
    );
  }

  /** Fills `table` i32 [2, ranks] for kernels with the addresses of the records that this rank reads, by parity and rank. */
  fillRecordTable(table: Int32Array): void {
    for (const [parity, windows] of this.#sets.entries()) {
      for (const [source, holder] of this.#holders.entries()) {
        const record = windows[holder === -1 ? this.#window : holder]![source]!;
        table[parity * this.#holders.length + source] = record.byteOffset | 0;
      }
    }
  }

  /**
   * Writes this rank's record into every window of its host. A barrier must follow before collect(). `status`: 0, or why this
   * rank cannot go on, for which see refusedBy(); the counts then say nothing.
   */
  publish(header: ExchangeHeader, { perRank, perExpert, perHost, ofRanks }: ExchangeCounts, status = 0): void {
    this.beginCall();
    const windows = this.#destinations();
    for (let window = 0; window < windows.length; window++) {
      const record = windows[window]![this.#self] as Int32Array;
      let word = 0;
      for (const field of exchangeFields) record[word++] = header[field];
      for (const field of exchangeOwnFields) record[word++] = header[field];
      record[EXCHANGE_STATUS_WORD] = status;
      record.set(perRank, EXCHANGE_HEADER_WORDS);
      const rank = this.#localRanks[window]!;
      const own = ofRanks?.[rank];
      const counts = EXCHANGE_HEADER_WORDS + this.#shape.ranks;
      if (own === undefined) record.set(perExpert, counts);
      else record.set(own, counts + rank * own.length);
      if (perHost) record.set(perHost, EXCHANGE_HEADER_WORDS + this.#shape.ranks + this.#shape.experts);
    }
  }

  /** Begins a call, or a part of one, without counts: turns to the next record, of which only the header counts. */
  beginCall(): void {
    this.parity = this.parity === 0 ? 1 : 0;
  }

  /** Says in this rank's own window which call it has begun, and where the record lies that is to go to other hosts. */
  announce(call: number): RecordPlace {
    const own = this.#received(this.#self) as Int32Array;
    own[EXCHANGE_CALL_WORD] = call | 0;
    return this.#placeOf(this.parity, this.#self);
  }

  /** The call that a rank of another host, which this rank serves, has begun. */
  announced(source: number): number {
    return (this.#destinations()[this.#window]?.[source]?.[EXCHANGE_CALL_WORD] ?? 0) >>> 0;
  }

  /** All ranks' records, after the barrier. Every rank fails with the same WL_CONFIG_MISMATCH if they disagree. */
  collect(): ExchangeResult {
    const { ranks: n, experts, hosts } = this.#shape;
    this.requireAgreement();
    const records = this.#all();
    const result = {
      numTokens: new Int32Array(n),
      rowBound: new Int32Array(n),
      perRank: new Int32Array(n * n),
      perExpert: new Int32Array(n * experts),
      perHost: new Int32Array(n * hosts),
    };
    for (const [source, record] of records.entries()) {
      result.numTokens[source] = record[exchangeFields.length]!;
      result.rowBound[source] = record[exchangeFields.length + 1]!;
      const counts = EXCHANGE_HEADER_WORDS;
      result.perRank.set(record.subarray(counts, counts + n), source * n);
      result.perExpert.set(record.subarray(counts + n, counts + n + experts), source * experts);
      result.perHost.set(record.subarray(counts + n + experts, counts + n + experts + hosts), source * hosts);
    }
    return result;
  }

  /** Hot path. After the barrier: the first rank that published a status, or -1. */
  refusedBy(): number {
    for (let source = 0; source < this.#holders.length; source++) {
      if (this.#received(source)![EXCHANGE_STATUS_WORD] !== 0) return source;
    }
    return -1;
  }

  /** What the rank told when it refused, and the choices of its tokens. */
  refusalOf(source: number): { readonly status: number; readonly rank: number; readonly k: number } {
    const record = this.#received(source)!;
    const k = Math.max(1, record[exchangeFields.indexOf('topk')]!);
    return { status: record[EXCHANGE_STATUS_WORD]! >>> 0, rank: this.#worldRanks[source]!, k };
  }

  /** Fails with the same WL_CONFIG_MISMATCH on every rank if the records disagree. To be called after the barrier. */
  requireAgreement(): void {
    this.#compare(this.#all());
  }

  /** The bound of a rank on the rows that it receives. To be read after the barrier. */
  rowBoundOf(rank: number): number {
    return this.#received(rank)![exchangeFields.length + exchangeOwnFields.indexOf('rowBound')]!;
  }

  /** Tokens of each rank that go to each host; see ExchangeResult. To be called after the barrier. */
  collectPerHost(): Int32Array {
    const { ranks, experts, hosts } = this.#shape;
    const perHost = new Int32Array(ranks * hosts);
    if (hosts === 0) return perHost;
    const first = EXCHANGE_HEADER_WORDS + ranks + experts;
    for (const [source, record] of this.#all().entries()) {
      perHost.set(record.subarray(first, first + hosts), source * hosts);
    }
    return perHost;
  }

  /** Tells everyone how a step went here: 0 good, else a code of the caller's. A barrier must follow before statuses(). */
  publishStatus(status: number): void {
    const own = this.#received(this.#self) as Int32Array;
    if (own[EXCHANGE_STATUS_WORD] === (status | 0)) return;
    for (const records of this.#destinations()) (records[this.#self] as Int32Array)[EXCHANGE_STATUS_WORD] = status;
  }

  statuses(): number[] {
    return this.#all().map((record) => record[EXCHANGE_STATUS_WORD]! >>> 0);
  }

  #placeOf(parity: number, source: number): RecordPlace {
    const bytes = exchangeRecordBytes(this.#shape);
    return { offset: this.#offset + (parity * this.#shape.ranks + source) * bytes, bytes };
  }

  #destinations(): readonly Int32Array[][] {
    return this.#sets[this.parity] as readonly Int32Array[][];
  }

  #all(): readonly Int32Array[] {
    return this.#holders.map((_, source) => this.#received(source) as Int32Array);
  }

  /** The record of a source where this host has it. */
  #received(source: number): Int32Array | undefined {
    const holder = this.#holders[source]!;
    return this.#destinations()[holder === -1 ? this.#window : holder]?.[source];
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
