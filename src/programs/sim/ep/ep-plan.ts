// What the calls of each simulated rank carry: rows, chunks and bytes to each host and back, the same for whoever asks.
import { DATA_HEADER_BYTES } from '../../../abi/transport-packet.ts';
import { WIRE_OVERHEAD_BYTES } from '../simulated-io.ts';
import { wireBytes } from '../theory.ts';
import type { EpOptions } from './ep-options.ts';
import type { EpTraffic } from './ep-traffic.ts';
import { chunkSize, type ServeRule } from './serve-order.ts';

export const epPhases = ['dispatch', 'combine'] as const;
export type EpPhase = (typeof epPhases)[number];

/** A signal, or any packet without payload, with the headers of all layers. */
const SIGNAL_WIRE_BYTES = DATA_HEADER_BYTES + WIRE_OVERHEAD_BYTES;
const RECORD_HEADER_BYTES = 64;
const COUNT_BYTES = 4;
const BLOCK_OF_SCALE = 128;

interface Chunk {
  readonly rows: number;
  /** Copies to other ranks of the host in dispatch, rows that are summed in combine. */
  readonly localRows: number;
}

/** Ranks are numbered as in the network. */
export class EpPlan {
  readonly hosts: number;
  readonly ranks: number;
  readonly #options: EpOptions;
  readonly #traffic: EpTraffic;
  readonly #sizes: Readonly<Record<EpPhase, ReturnType<typeof chunkSize>>>;

  constructor(options: EpOptions, traffic: EpTraffic) {
    this.hosts = options.shape.hosts;
    this.ranks = options.simulatedRanks;
    this.#options = options;
    this.#traffic = traffic;
    const size = (phase: EpPhase): ReturnType<typeof chunkSize> =>
      chunkSize({ ...options.protocol, hosts: this.hosts, rowBytes: this.rowBytes(phase) });
    this.#sizes = { dispatch: size('dispatch'), combine: size('combine') };
  }

  /** Bytes of the record with which a rank enters a call. */
  recordBytes(phase: EpPhase): number {
    const { experts, hosts, ranksPerHost } = this.#options.shape;
    return phase === 'combine'
      ? RECORD_HEADER_BYTES
      : RECORD_HEADER_BYTES + COUNT_BYTES * (experts + hosts * ranksPerHost);
  }

  rowBytes(phase: EpPhase): number {
    const { dtype, hidden } = this.#options.shape;
    return phase === 'dispatch' && dtype === 'fp8' ? hidden : 2 * hidden;
  }

  /** Rows that cross the network from a rank to a host. */
  rows(phase: EpPhase, rank: number, host: number): number {
    const own = Math.floor(rank / this.ranks);
    if (own === host) return 0;
    // What comes back is what went there.
    const at = phase === 'dispatch' ? rank * this.hosts + host : this.#peer(rank, host) * this.hosts + own;
    return (this.#options.protocol.rows === 'per-host' ? this.#traffic.rows : this.#traffic.choices)[at]!;
  }

  /** What describes the rows of a dispatch: source tokens, places, experts, weights, scales. */
  metadataBytes(rank: number, host: number): number {
    const { topk, dtype, hidden } = this.#options.shape;
    const rows = this.rows('dispatch', rank, host);
    const scales = dtype === 'fp8' ? 4 * Math.ceil(hidden / BLOCK_OF_SCALE) : 0;
    return rows * (4 + 8 * topk + scales) + 4 * this.#traffic.places[rank * this.hosts + host]!;
  }

  chunkRows(phase: EpPhase): number {
    return this.#sizes[phase].rows;
  }

  serveRule(phase: EpPhase): ServeRule {
    return { order: this.#options.protocol.order, perHost: this.#sizes[phase].perHost };
  }

  chunks(phase: EpPhase, rank: number, host: number): number {
    return Math.ceil(this.rows(phase, rank, host) / this.chunkRows(phase));
  }

  /** Chunk `index` of those from a rank to a host. */
  chunk(
    phase: EpPhase,
    { rank, host, index }: { readonly rank: number; readonly host: number; readonly index: number },
  ): Chunk {
    const all = this.rows(phase, rank, host);
    const rows = Math.min(this.chunkRows(phase), all - index * this.chunkRows(phase));
    return { rows, localRows: (rows * this.#localRows(phase, rank, host)) / all };
  }

  /** Rows that a rank's tokens leave on its own host, at all ranks that need them. */
  ownPlaces(rank: number): number {
    return this.#traffic.places[rank * this.hosts + Math.floor(rank / this.ranks)]!;
  }

  /** Bytes of the longest write of all. */
  largestWrite(): number {
    const { rowsPerWrite } = this.#options.protocol;
    let most = Math.max(this.recordBytes('dispatch'), rowsPerWrite * this.rowBytes('combine'));
    for (let rank = 0; rank < this.hosts * this.ranks; rank += 1) {
      for (let host = 0; host < this.hosts; host += 1) most = Math.max(most, this.metadataBytes(rank, host));
    }
    return most;
  }

  /** Rows that a rank copies (dispatch) or adds (combine) in its host's memory. */
  localRows(phase: EpPhase, rank: number): number {
    const own = Math.floor(rank / this.ranks);
    let sum = this.ownPlaces(rank);
    for (let host = 0; host < this.hosts; host += 1) {
      if (host === own) continue;
      if (phase === 'dispatch') sum += this.#localRows(phase, this.#peer(rank, host), own);
      else sum += this.#localRows(phase, rank, host) + this.rows(phase, this.#peer(rank, host), own);
    }
    return sum;
  }

  /** All that crosses the network from a rank to a host in a phase, with headers, without acks. */
  wireBytes(phase: EpPhase, rank: number, host: number): number {
    const { segmentBytes, protocol } = this.#options;
    const rows = this.rows(phase, rank, host);
    if (rows === 0) return 0;
    const chunkRows = this.chunkRows(phase);
    const chunkWire = (count: number): number => {
      const whole = Math.floor(count / protocol.rowsPerWrite);
      const rest = count % protocol.rowsPerWrite;
      const row = this.rowBytes(phase);
      const full = whole * wireBytes(protocol.rowsPerWrite * row, segmentBytes);
      return full + (rest === 0 ? 0 : wireBytes(rest * row, segmentBytes)) + SIGNAL_WIRE_BYTES;
    };
    const last = rows % chunkRows;
    const metadata = phase === 'dispatch' ? wireBytes(this.metadataBytes(rank, host), segmentBytes) : 0;
    return metadata + Math.floor(rows / chunkRows) * chunkWire(chunkRows) + (last === 0 ? 0 : chunkWire(last));
  }

  /** All that reaches a rank from other hosts in a phase. */
  wireBytesTo(phase: EpPhase, rank: number): number {
    const own = Math.floor(rank / this.ranks);
    let sum = 0;
    for (let host = 0; host < this.hosts; host += 1) {
      if (host !== own) sum += this.wireBytes(phase, this.#peer(rank, host), own);
    }
    return sum;
  }

  /** All that leaves a rank for other hosts in a phase. */
  wireBytesFrom(phase: EpPhase, rank: number): number {
    let sum = 0;
    for (let host = 0; host < this.hosts; host += 1) sum += this.wireBytes(phase, rank, host);
    return sum;
  }

  /** The rank of a host with which a rank exchanges rows. */
  peer(rank: number, host: number): number {
    return this.#peer(rank, host);
  }

  #peer(rank: number, host: number): number {
    return host * this.ranks + (rank % this.ranks);
  }

  #localRows(phase: EpPhase, rank: number, host: number): number {
    const { rows, places, choices } = this.#traffic;
    const own = Math.floor(rank / this.ranks);
    const at = phase === 'dispatch' ? rank * this.hosts + host : this.#peer(rank, host) * this.hosts + own;
    if (this.#options.protocol.rows === 'per-expert') return phase === 'dispatch' ? 0 : choices[at]!;
    return phase === 'dispatch' ? places[at]! - rows[at]! : places[at]!;
  }
}
