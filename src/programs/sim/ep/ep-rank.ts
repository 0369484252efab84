// One simulated rank in one call after the other: it meets its peers, sends chunks, and takes in what arrives.
import type { Region } from '../../../transport/engine/region.ts';
import type { LaneConnection } from '../lane-connection.ts';
import type { SimulatedHost } from '../simulated-host.ts';
import type { Simulation } from '../simulation.ts';
import type { EpPhase, EpPlan } from './ep-plan.ts';
import type { EpProtocol } from './ep-options.ts';
import { ServeOrder } from './serve-order.ts';

/** When a rank got to what, in microseconds; of one call. */
export interface RankTimes {
  /** Its host had met: it began to send. */
  began: number;
  /** The last rows that were meant for it had come. */
  arrived: number;
}

export interface EpRankOptions {
  readonly simulation: Simulation;
  readonly host: SimulatedHost;
  readonly rank: number;
  readonly plan: EpPlan;
  readonly protocol: EpProtocol;
  /** By host; the peer there. None for one's own. */
  readonly ends: readonly (LaneConnection | undefined)[];
  /** Bytes per microsecond. */
  readonly localRate: number;
  /** Called when the rank has met its peers, or is done. */
  readonly onMet: () => void;
  readonly onDone: () => void;
}

/** Memory of a rank: a cell for each kind of signal and host, then room for anything that is written. */
const CELL_BYTES = 8;
const KINDS = 4;
const kindOf = { dispatch: { record: 0, chunk: 1 }, combine: { record: 2, chunk: 3 } } as const;

export class EpRank {
  readonly #options: EpRankOptions;
  readonly #hosts: number;
  readonly #own: number;
  readonly region: Region;
  readonly #cells: Int32Array;
  /** What of each cell was taken. */
  readonly #taken: Int32Array;
  /** By peer: its region. */
  readonly #remote: { readonly remoteRegion: number; readonly remoteKey: number }[] = [];
  /** By the request of a chunk's signal: the host to which it goes. */
  readonly #signals = new Map<number, number>();
  readonly times: Record<EpPhase, RankTimes> = { dispatch: noTimes(), combine: noTimes() };
  #phase: EpPhase = 'dispatch';
  #serve: ServeOrder | undefined;
  #recordsLeft: number;
  #chunksLeft = 0;
  #sentChunks: Int32Array;
  /** When the rank is done with what it copies or sums. */
  #busyUntil = 0;
  /** What its own host's rows take, which wait while others are waited for; in microseconds. */
  #ownWork = 0;
  #isDone = true;

  constructor(options: EpRankOptions) {
    const { host, plan, rank } = options;
    this.#options = options;
    this.#hosts = plan.hosts;
    this.#own = Math.floor(rank / plan.ranks);
    const cells = KINDS * plan.hosts;
    const bytes = new Uint8Array(cells * CELL_BYTES + plan.largestWrite());
    this.region = host.register({ bytes, remote: { read: false, write: true } });
    this.#cells = new Int32Array(bytes.buffer, 0, cells * 2);
    this.#taken = new Int32Array(cells);
    this.#sentChunks = new Int32Array(plan.hosts);
    this.#recordsLeft = 0;
    host.onEnd = ({ request }) => this.#ended(request);
    host.afterRound = () => this.#look();
  }

  /** Learns where the peers' memory is. */
  learn(host: number, region: Region): void {
    this.#remote[host] = { remoteRegion: region.id, remoteKey: region.key };
  }

  enter(phase: EpPhase): void {
    const { plan, simulation } = this.#options;
    this.#phase = phase;
    this.#isDone = false;
    this.#recordsLeft = this.#hosts - 1;
    const bytes = plan.recordBytes(phase);
    for (let step = 1; step < this.#hosts; step += 1) {
      const host = (this.#own + step) % this.#hosts;
      this.#write(host, bytes);
      this.#signal(host, kindOf[phase].record);
    }
    simulation.wake(this.#options.rank);
    this.#look();
  }

  /** The host has met: rows may go. */
  begin(): void {
    const { plan, simulation, rank } = this.#options;
    const phase = this.#phase;
    const times = this.times[phase];
    times.began = simulation.now;
    const hosts = Array.from({ length: this.#hosts }, (_, host) => host);
    const chunks = hosts.map((host) => plan.chunks(phase, rank, host));
    this.#serve = new ServeOrder({ rule: plan.serveRule(phase), own: this.#own, chunks });
    this.#sentChunks.fill(0);
    this.#chunksLeft = hosts
      .filter((host) => host !== this.#own)
      .reduce((sum, host) => sum + plan.chunks(phase, plan.peer(rank, host), this.#own), 0);
    this.#busyUntil = simulation.now;
    this.#ownWork = (plan.ownPlaces(rank) * plan.rowBytes(phase)) / this.#options.localRate;
    times.arrived = simulation.now;
    this.#send();
    this.#look();
    this.#finishIfDone();
  }

  #send(): void {
    const serve = this.#serve;
    if (serve === undefined) return;
    const { plan, rank, simulation } = this.#options;
    const phase = this.#phase;
    for (let host = serve.next(); host !== -1; host = serve.next()) {
      const index = this.#sentChunks[host]!;
      this.#sentChunks[host] = index + 1;
      if (phase === 'dispatch' && index === 0) this.#write(host, plan.metadataBytes(rank, host));
      const { rows, localRows } = plan.chunk(phase, { rank, host, index });
      if (phase === 'dispatch') this.#post(host, rows);
      else {
        // The host's rows of these tokens are summed before.
        this.#work(localRows);
        simulation.at(this.#busyUntil, () => this.#post(host, rows));
      }
    }
  }

  #post(host: number, rows: number): void {
    const { plan, rank, protocol, simulation } = this.#options;
    const phase = this.#phase;
    for (let left = rows; left > 0; left -= protocol.rowsPerWrite) {
      this.#write(host, Math.min(left, protocol.rowsPerWrite) * plan.rowBytes(phase));
    }
    this.#signal(host, kindOf[phase].chunk);
    simulation.wake(rank);
  }

  #write(host: number, bytes: number): void {
    const { ends } = this.#options;
    const offset = KINDS * this.#hosts * CELL_BYTES;
    ends[host]!.write({ region: this.region, offset, bytes, ...this.#remote[host]!, remoteOffset: offset });
  }

  #signal(host: number, kind: number): void {
    const remoteOffset = (kind * this.#hosts + this.#own) * CELL_BYTES;
    const request = this.#options.ends[host]!.signal({ ...this.#remote[host]!, remoteOffset, add: 1 });
    if (kind === kindOf[this.#phase].chunk) this.#signals.set(request, host);
  }

  #ended(request: number): void {
    const host = this.#signals.get(request);
    if (host === undefined) return;
    this.#signals.delete(request);
    this.#serve!.arrived(host);
    this.#send();
    this.#finishIfDone();
  }

  /** Takes what has arrived since the last look. */
  #look(): void {
    if (this.#isDone) return;
    const { record, chunk } = kindOf[this.#phase];
    if (this.#recordsLeft > 0) {
      this.#recordsLeft -= this.#take(record, () => {});
      if (this.#recordsLeft === 0) this.#options.onMet();
    }
    if (this.#serve === undefined || this.#chunksLeft === 0) return;
    const { plan, rank, simulation } = this.#options;
    const phase = this.#phase;
    const came = this.#take(chunk, (host, index) => {
      const { rows, localRows } = plan.chunk(phase, { rank: plan.peer(rank, host), host: this.#own, index });
      this.#work(phase === 'dispatch' ? localRows : rows);
    });
    if (came === 0) return;
    this.times[phase].arrived = simulation.now;
    this.#chunksLeft -= came;
    this.#finishIfDone();
  }

  #take(kind: number, each: (host: number, index: number) => void): number {
    let count = 0;
    for (let host = 0; host < this.#hosts; host += 1) {
      const cell = kind * this.#hosts + host;
      const value = this.#cells[2 * cell]!;
      for (let index = this.#taken[cell]!; index < value; index += 1) {
        each(host, index);
        count += 1;
      }
      this.#taken[cell] = value;
    }
    return count;
  }

  /** Copies or adds so many rows, after what it is busy with. Where it was idle, it went on with its own host's rows. */
  #work(rows: number): void {
    const { plan, localRate } = this.#options;
    this.#useIdleTime();
    this.#busyUntil += (rows * plan.rowBytes(this.#phase)) / localRate;
  }

  #useIdleTime(): void {
    const { now } = this.#options.simulation;
    const idle = now - this.#busyUntil;
    if (idle <= 0) return;
    this.#ownWork = Math.max(0, this.#ownWork - idle);
    this.#busyUntil = now;
  }

  #finishIfDone(): void {
    if (this.#isDone || this.#chunksLeft > 0 || this.#serve?.isDone !== true) return;
    const { simulation, onDone } = this.#options;
    this.#isDone = true;
    this.#useIdleTime();
    simulation.at(this.#busyUntil + this.#ownWork, () => {
      this.#serve = undefined;
      onDone();
    });
  }
}

function noTimes(): RankTimes {
  return { began: 0, arrived: 0 };
}
