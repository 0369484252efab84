// Posts the requests of a connection to its lanes: small ones to one engine, large ones in parts to several. Hot path: no
// allocation.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { engineCommandKinds } from '../engine-commands.ts';
import { CUT_ROWS, divideInto, divideParts, homeLane, LaneChoice, type Spread } from '../lanes/lane-choice.ts';
import { PartTable, PartWriter } from '../part-table.ts';
import { MAX_FLOWS } from '../wire/packet-layout.ts';
import { checkHeld, isWhole, MAX_WORD } from './command-ring.ts';
import type { EngineGroup, LaneEnd } from './engine-group.ts';
import type { LocalPart, MemoryRegion, RemotePart, SignalPart } from './memory-region.ts';
import type { LinePlan, TransferMessage, TransferPlan } from './prepared-transfers.ts';
import type { RequestHandle, RequestSlots } from './request-slots.ts';
import { NOBODY } from './shared-requests.ts';

/** @internal */
interface LanePostsParts {
  readonly slots: RequestSlots;
  /** Ends in the order of lanes. */
  readonly ends: readonly LaneEnd[];
  readonly spread: Spread;
  readonly isRegistered: (region: MemoryRegion) => boolean;
  readonly peerName: string;
}

/** The posts of a connection; its end is the heir's. */
export abstract class LanePosts {
  /** @internal */
  readonly slots: RequestSlots;
  readonly peerName: string;
  readonly #ends: readonly LaneEnd[];
  readonly #isRegistered: (region: MemoryRegion) => boolean;
  readonly #choice: LaneChoice;
  /** The connection's numbers by engine. */
  readonly #numbers: number[] = [];

  /** @internal */
  constructor({ slots, ends, spread, isRegistered, peerName }: LanePostsParts) {
    this.slots = slots;
    this.peerName = peerName;
    this.#ends = ends;
    this.#isRegistered = isRegistered;
    this.#choice = new LaneChoice(ends.length, spread);
    for (const { engine, number } of ends) this.#numbers[engine] = number;
  }

  /** @internal Fails with the reason for which nothing more can be posted. */
  abstract requireOpen(): void;

  /** Offers memory for the next message of the flow. The end tells how many bytes came. */
  receive(part: LocalPart): RequestHandle {
    return this.#message(engineCommandKinds.receive, part);
  }

  /** Sends a message to the next receive of the flow; ends when every byte has arrived there. */
  send(part: LocalPart): RequestHandle {
    return this.#message(engineCommandKinds.send, part);
  }

  #message(kind: number, part: LocalPart): RequestHandle {
    this.#fill(kind, part);
    if (this.#ends.length === 1) return this.#postHome();
    const { command } = this.slots;
    const { offset, bytes } = command;
    const choice = this.#choice;
    const flow = choice.flow(command.flow);
    // INVARIANT: only what no engine refuses takes a turn, or the two sides would no longer count alike.
    if (!this.#isGood(part.region)) {
      return this.#postHome();
    }
    const isSend = kind === engineCommandKinds.send;
    choice.message(flow, isSend ? flow.sends : flow.receives, bytes);
    this.#openParts();
    for (let at = 0; at < choice.count; at++) {
      const share = choice.parts[at]!;
      if (isSend) {
        command.offset = offset + share.offset;
        command.bytes = share.bytes;
        command.partOffset = share.offset;
      }
      this.#put(share.lane);
    }
    if (isSend) flow.sends++;
    else flow.receives++;
    return this.#request;
  }

  /** Writes into a region of the peer; ends when every byte lies there. All writes of a flow go by one engine. */
  write(part: LocalPart & RemotePart): RequestHandle {
    this.#fill(engineCommandKinds.write, part);
    this.#aim(part);
    return this.#postHome();
  }

  /** Reads from a region of the peer; ends when every byte lies here. */
  read(part: LocalPart & RemotePart): RequestHandle {
    this.#fill(engineCommandKinds.read, part);
    this.#aim(part);
    // One engine alone refuses what is wrong: others would have brought their parts of it.
    if (this.#ends.length === 1 || !this.#isGood(part.region)) return this.#postHome();
    const { command } = this.slots;
    const { offset, bytes, remoteOffset } = command;
    const choice = this.#choice;
    choice.read(choice.flow(command.flow), bytes);
    this.#openParts();
    for (let at = 0; at < choice.count; at++) {
      const share = choice.parts[at]!;
      command.offset = offset + share.offset;
      command.bytes = share.bytes;
      command.remoteOffset = remoteOffset + share.offset;
      this.#put(share.lane);
    }
    return this.#request;
  }

  /** Adds to a counter of the peer, after the data of all earlier writes of the flow. */
  signal(part: SignalPart): RequestHandle {
    this.requireOpen();
    if (typeof part !== 'object' || part === null) throw invalidArgument('part', part, 'a region of the peer and add');
    checkHeld('flow', part.flow ?? 0, MAX_WORD);
    checkHeld('add', part.add, Number.MAX_SAFE_INTEGER);
    const { command } = this.slots;
    command.kind = engineCommandKinds.signal;
    command.flow = part.flow ?? 0;
    this.#aim(part);
    command.add = part.add;
    return this.#postHome();
  }

  /** Ends when all writes and signals posted before on the flow have. */
  flush(flow = 0): RequestHandle {
    this.requireOpen();
    checkHeld('flow', flow, MAX_WORD);
    const { command } = this.slots;
    command.kind = engineCommandKinds.flush;
    command.flow = flow;
    return this.#postHome();
  }

  /**
   * Withdraws a pending request, which then fails with WL_CLOSED, unless it ends first. The other end of a message fails with
   * WL_PEER_FAILED if the two have met; on a connection with several lanes, also if they meet later. Once a write has ended, nothing
   * of it is written there any more.
   */
  cancel(request: RequestHandle): void {
    this.slots.cancel(request, this.#numbers);
  }

  #fill(kind: number, part: LocalPart): void {
    this.requireOpen();
    requireRegion(part);
    const { region, offset = 0, flow = 0 } = part;
    checkHeld('flow', flow, MAX_WORD);
    checkHeld('offset', offset, Number.MAX_SAFE_INTEGER);
    const { bytes = region.bytes.length - offset } = part;
    // An offset behind the region's end fails here as well, as it is then the mistake.
    if (bytes !== region.bytes.length - offset) checkHeld('bytes', bytes, Number.MAX_SAFE_INTEGER);
    const { command } = this.slots;
    command.kind = kind;
    command.flow = flow;
    command.region = region.number;
    command.offset = offset;
    command.bytes = bytes;
    command.partOffset = 0;
    command.add = command.bytes;
  }

  #aim({ remoteRegion, remoteKey, remoteOffset = 0 }: RemotePart): void {
    checkHeld('remoteRegion', remoteRegion, MAX_WORD);
    checkHeld('remoteKey', remoteKey, MAX_WORD);
    checkHeld('remoteOffset', remoteOffset, Number.MAX_SAFE_INTEGER);
    const { command } = this.slots;
    command.remoteRegion = remoteRegion;
    command.remoteKey = remoteKey;
    command.remoteOffset = remoteOffset;
  }

  /** True if the engines will take a message of this memory. */
  #isGood(region: MemoryRegion): boolean {
    const { flow, offset, bytes } = this.slots.command;
    return (
      this.#isRegistered(region) &&
      isWhole(flow, MAX_FLOWS - 1) &&
      isWhole(offset, region.bytes.length) &&
      isWhole(bytes, region.bytes.length - offset)
    );
  }

  #postHome(): RequestHandle {
    const { command } = this.slots;
    const { engine, number } = this.#ends[homeLane(command.flow, this.#ends.length)]!;
    command.connection = number;
    command.partOffset = 0;
    return this.slots.post(this.peerName, engine);
  }

  #request: RequestHandle = 0;

  /** Begins a request with the parts that were chosen. */
  #openParts(): void {
    const { count, parts } = this.#choice;
    let engines = 0;
    for (let at = 0; at < count; at++) engines |= 1 << this.#ends[parts[at]!.lane]!.engine;
    this.#request = this.slots.open(this.peerName, engines, count, NOBODY);
  }

  #put(lane: number): void {
    const { engine, number } = this.#ends[lane]!;
    this.slots.command.connection = number;
    this.slots.put(engine);
  }
}

/** Whether it is registered is asked where the message is made. */
function requireRegion(part: LocalPart | undefined): void {
  const region = part?.region;
  if (region?.bytes instanceof Uint8Array && isWhole(region.number, MAX_WORD)) return;
  throw invalidArgument('region', part?.region, 'what transport.register() returned');
}

interface OpenLine {
  readonly lane: number;
  /** Number in the lane's engine. */
  readonly number: number;
}

interface Share {
  readonly lane: number;
  /** The engine's number of the transfer. */
  readonly number: number;
  readonly table: PartTable;
}

interface SpreadTransfer {
  /** That of the line's lane, which sends the message, comes first. */
  readonly shares: readonly Share[];
  /** Shares out anew what was selected for a post. */
  readonly divide: (() => void) | undefined;
}

interface LaneTransfersParts {
  readonly group: EngineGroup;
  readonly ends: readonly LaneEnd[];
  readonly posts: LanePosts;
}

/**
 * The prepared transfers of a connection: their parts are spread over its lanes once, when they are prepared; the message
 * follows on the lane of its line.
 */
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

  /** Where messages of transfers go. Its number goes into their plans; it ends with the connection. */
  async openLine(plan: Omit<LinePlan, 'connection'>): Promise<number> {
    const lane = homeLane(plan.flow, this.#ends.length);
    const { engine, number: connection } = this.#ends[lane] as LaneEnd;
    const number = await this.#group.call(engine, 'openLine', { ...plan, connection });
    return this.#lines.push({ lane, number }) - 1;
  }

  /** Describes a transfer of many ranges to the engines; `post` takes the number. */
  async prepare(plan: Omit<TransferPlan, 'connection'>): Promise<number> {
    const line = this.#lines[plan.line];
    const home = line?.lane ?? homeLane(plan.flow, this.#ends.length);
    const whole = PartTable.over(plan.parts);
    const all = this.#ends.length;
    const isDivided = plan.isBySelection && all > 1;
    const room = whole.capacity + CUT_ROWS;
    const writers = isDivided ? this.#ends.map(() => new PartWriter(PartTable.withRoom(room), false)) : [];
    const divide = isDivided ? () => divideInto(writers, whole, home) : undefined;
    const tables = divide?.() ?? divideParts(whole, all, home);
    const lanes = tables.flatMap(({ count }, lane) => ((isDivided || count > 0) && lane !== home ? [lane] : []));
    const shares = await Promise.all(
      [home, ...lanes].map(async (lane) => {
        const { engine, number: connection } = this.#ends[lane] as LaneEnd;
        const table = tables[lane] as PartTable;
        const own = { ...plan, connection, parts: table.buffer, line: lane === home ? (line?.number ?? -1) : -1 };
        return { lane, table, number: await this.#group.call(engine, 'prepare', own) };
      }),
    );
    const transfer = this.#next++;
    this.#transfers.set(transfer, { shares, divide });
    return transfer;
  }

  /** Hot path. All its ranges, then its message; ends when both have arrived. Failing ranges hold the message back. */
  post(transfer: number, { offset, bytes }: TransferMessage): RequestHandle {
    this.#posts.requireOpen();
    const spread = this.#transfers.get(transfer);
    if (spread === undefined) throw new WeftlineError('WL_CLOSED', 'The transfer was closed');
    const { slots, peerName } = this.#posts;
    const { shares, divide } = spread;
    divide?.();
    let [engines, count] = [0, 0];
    for (let at = 0; at < shares.length; at++) {
      if (at > 0 && shares[at]!.table.count === 0) continue;
      engines |= 1 << this.#ends[shares[at]!.lane]!.engine;
      count++;
    }
    const last = count === 1 ? NOBODY : (this.#ends[shares[0]!.lane] as LaneEnd).engine;
    const request = slots.open(peerName, engines, count, last);
    const { command } = slots;
    command.kind = engineCommandKinds.transfer;
    command.flow = 0;
    command.partOffset = 0;
    command.offset = offset;
    for (let at = 0; at < shares.length; at++) {
      const { lane, number, table } = shares[at]!;
      if (at > 0 && table.count === 0) continue;
      const { engine, number: connection } = this.#ends[lane]!;
      command.connection = connection;
      command.region = number;
      command.bytes = at === 0 ? bytes : 0;
      slots.put(engine);
    }
    return request;
  }

  /** None of its posts may be pending. */
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
