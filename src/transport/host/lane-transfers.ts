// The prepared transfers of a connection: their parts are spread over its lanes once, when they are prepared; the message
// follows on the lane of its line.
import { PartTable } from '../part-table.ts';
import { engineCommandKinds } from '../engine-commands.ts';
import { WeftlineError } from '../../core/errors.ts';
import { divideParts, homeLane } from '../lanes/lane-choice.ts';
import type { EngineGroup } from './engine-group.ts';
import type { LaneEnd } from './lane-ends.ts';
import type { LanePosts } from './lane-posts.ts';
import type { LinePlan, TransferMessage, TransferPlan } from './prepared-transfers.ts';
import type { RequestHandle } from './request-slots.ts';
import { NOBODY } from './shared-requests.ts';

interface OpenLine {
  readonly lane: number;
  /** Of the lane's engine. */
  readonly number: number;
}

interface Share {
  readonly lane: number;
  /** The engine's number of the transfer. */
  readonly number: number;
}

interface SpreadTransfer {
  /** That of the line's lane, which sends the message, comes first. */
  readonly shares: readonly Share[];
  /** As bits. */
  readonly engines: number;
}

interface LaneTransfersParts {
  readonly group: EngineGroup;
  readonly ends: readonly LaneEnd[];
  readonly posts: LanePosts;
}

export class LaneTransfers {
  readonly #group: EngineGroup;
  readonly #ends: readonly LaneEnd[];
  readonly #posts: LanePosts;
  readonly #lines: OpenLine[] = [];
  readonly #transfers = new Map<number, SpreadTransfer>();
  #next = 0;

  constructor({ group, ends, posts }: LaneTransfersParts) {
    this.#group = group;
    this.#ends = ends;
    this.#posts = posts;
  }

  async openLine(plan: Omit<LinePlan, 'connection'>): Promise<number> {
    const lane = homeLane(plan.flow, this.#ends.length);
    const { engine, number: connection } = this.#ends[lane] as LaneEnd;
    const number = await this.#group.call(engine, 'openLine', { ...plan, connection });
    return this.#lines.push({ lane, number }) - 1;
  }

  async prepare(plan: Omit<TransferPlan, 'connection'>): Promise<number> {
    const line = this.#lines[plan.line];
    const home = line?.lane ?? homeLane(plan.flow, this.#ends.length);
    const tables = divideParts(PartTable.over(plan.parts), this.#ends.length, home);
    const lanes = tables.flatMap(({ count }, lane) => (count > 0 && lane !== home ? [lane] : []));
    const shares = await Promise.all(
      [home, ...lanes].map(async (lane) => {
        const { engine, number: connection } = this.#ends[lane] as LaneEnd;
        const parts = (tables[lane] as PartTable).buffer;
        const own = { ...plan, connection, parts, line: lane === home ? (line?.number ?? -1) : -1 };
        return { lane, number: await this.#group.call(engine, 'prepare', own) };
      }),
    );
    const engines = shares.reduce((bits, { lane }) => bits | (1 << (this.#ends[lane] as LaneEnd).engine), 0);
    const transfer = this.#next++;
    this.#transfers.set(transfer, { shares, engines });
    return transfer;
  }

  /** Hot path. */
  post(transfer: number, { offset, bytes }: TransferMessage): RequestHandle {
    const spread = this.#transfers.get(transfer);
    if (spread === undefined) throw new WeftlineError('WL_CLOSED', 'The transfer was released');
    const { slots, peerName } = this.#posts;
    const { shares, engines } = spread;
    const last = shares.length === 1 ? NOBODY : (this.#ends[shares[0]!.lane] as LaneEnd).engine;
    const request = slots.open(peerName, engines, shares.length, last);
    const { command } = slots;
    command.kind = engineCommandKinds.transfer;
    command.flow = 0;
    command.gate = 0;
    command.partOffset = 0;
    command.offset = offset;
    for (let at = 0; at < shares.length; at++) {
      const { lane, number } = shares[at]!;
      const { engine, number: connection } = this.#ends[lane]!;
      command.connection = connection;
      command.region = number;
      command.bytes = at === 0 ? bytes : 0;
      slots.put(engine);
    }
    return request;
  }

  async release(transfer: number): Promise<void> {
    const spread = this.#transfers.get(transfer);
    if (spread === undefined) return;
    this.#transfers.delete(transfer);
    const { shares } = spread;
    await Promise.all(
      shares.map(({ lane, number }) => this.#group.call((this.#ends[lane] as LaneEnd).engine, 'unprepare', number)),
    );
  }
}
