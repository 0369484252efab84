// Tables of ranges that the user's thread fills in and the engine's thread reads: each write names some of their entries.
// Hot path: no allocation but for more writes under way, or larger ones, than ever before.
import { PartTable } from '../part-table.ts';
import { REQUEST_SLOTS } from '../engine-commands.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { Region } from '../engine/region.ts';
import type { ScatterOptions } from '../engine/transport-engine.ts';
import { PackedRanges } from '../send/range-list.ts';
import type { EngineCommand } from './command-ring.ts';

/** Plain data, so that it can cross threads. */
export interface RangesPlan {
  readonly connection: number;
  /** Buffer of a PartTable, whose indices of regions mean nothing here. */
  readonly parts: SharedArrayBuffer;
  readonly region: number;
  readonly remoteRegion: number;
  readonly remoteKey: number;
}

interface SharedTable extends RangesPlan {
  readonly table: PartTable;
}

type Writable<T> = { -readonly [K in keyof T]: T[K] };

/** Memory of so many writes that are over is kept for later ones. */
const MAX_KEPT = 64;
const NO_REGION: Region = { id: 0, key: 0, bytes: new Uint8Array(), address: 0, remote: { read: false, write: false } };

export class SharedRanges {
  /** Numbers are not used again: who forgets a table may not have heard yet that its connection ended, and the table with it. */
  readonly #tables = new Map<number, SharedTable>();
  #nextTable = 0;
  /** What the write in each slot carries. */
  readonly #underWay: (PackedRanges | undefined)[] = Array.from({ length: REQUEST_SLOTS }, () => undefined);
  readonly #free: PackedRanges[] = [];
  /** The engine reads it during its call. */
  readonly #scatter: Writable<ScatterOptions> = {
    region: NO_REGION,
    ranges: new PackedRanges().list,
    flow: 0,
    remoteRegion: 0,
    remoteKey: 0,
  };

  share(plan: RangesPlan): number {
    const number = this.#nextTable++;
    this.#tables.set(number, { ...plan, table: PartTable.over(plan.parts) });
    return number;
  }

  forget(number: number): void {
    this.#tables.delete(number);
  }

  /** A connection has ended. */
  end(connection: number): void {
    for (const [number, table] of this.#tables) if (table.connection === connection) this.#tables.delete(number);
  }

  /**
   * What the command writes, until the slot is freed; undefined if it is no byte. Fails with WL_CLOSED, and with
   * WL_INVALID_ARGUMENT for ranges outside of the region of this side.
   */
  pack(
    { slot, region: number, offset, bytes, flow }: EngineCommand,
    findRegion: (number: number) => Region | undefined,
  ): ScatterOptions | undefined {
    const shared = this.#tables.get(number);
    if (shared === undefined) throw new WeftlineError('WL_CLOSED', 'The table of ranges was released');
    const region = findRegion(shared.region);
    if (region === undefined) throw new WeftlineError('WL_CLOSED', 'The region was closed');
    const packed = this.#free.pop() ?? new PackedRanges();
    this.#underWay[slot] = packed;
    if (packed.pack(shared.table, offset, offset + bytes, region.bytes.length) === 0) return undefined;
    const scatter = this.#scatter;
    scatter.region = region;
    scatter.ranges = packed.list;
    scatter.flow = flow;
    scatter.remoteRegion = shared.remoteRegion;
    scatter.remoteKey = shared.remoteKey;
    return scatter;
  }

  /** The slot's request has ended, whichever it was. */
  free(slot: number): void {
    const packed = this.#underWay[slot];
    if (packed === undefined) return;
    this.#underWay[slot] = undefined;
    if (this.#free.length < MAX_KEPT) this.#free.push(packed);
  }
}
