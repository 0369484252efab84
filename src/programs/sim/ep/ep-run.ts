// Runs one dispatch and one combine across simulated hosts: when ranks enter, meet and end, and what passed the links.
import type { WeftlineError } from '../../../core/errors.ts';
import { quantile } from '../../../core/quantile.ts';
import { seededRandom } from '../../../core/seeded-random.ts';
import type { LaneConnection } from '../lane-connection.ts';
import { type RunEnd, Simulation } from '../simulation.ts';
import { epBounds } from './ep-bounds.ts';
import { rankLinks } from './ep-network.ts';
import type { EpOptions } from './ep-options.ts';
import { EpPlan, type EpPhase, epPhases } from './ep-plan.ts';
import { EpRank } from './ep-rank.ts';
import type { EpIncast, EpPhaseResult, EpResult, EpSample } from './ep-result.ts';
import { countTraffic, type EpTraffic } from './ep-traffic.ts';

export function runEp(options: EpOptions): EpResult {
  return new EpRun(options).run();
}

interface PhaseRun {
  readonly start: number;
  /** When the last host had met. */
  met: number;
  hostsDone: number;
  end: number;
  incast: EpIncast[];
  dropped: number;
}

class EpRun {
  readonly #options: EpOptions;
  readonly #simulation: Simulation;
  readonly #traffic: EpTraffic;
  readonly #plan: EpPlan;
  readonly #ranks: readonly EpRank[];
  readonly #connections: LaneConnection[] = [];
  readonly #phases: Partial<Record<EpPhase, PhaseRun>> = {};
  readonly #random: () => number;
  /** Of each host: ranks that have met, or are done. */
  readonly #met: Int32Array;
  readonly #done: Int32Array;
  readonly #samples: EpSample[] = [];
  #phase: EpPhase = 'dispatch';
  #isOver = false;
  #failure: WeftlineError | undefined;

  constructor(options: EpOptions) {
    this.#options = options;
    this.#random = seededRandom(options.seed ^ 0x51ce);
    this.#simulation = new Simulation(options);
    this.#traffic = countTraffic(options);
    this.#plan = new EpPlan(options, this.#traffic);
    this.#met = new Int32Array(this.#plan.hosts);
    this.#done = new Int32Array(this.#plan.hosts);
    this.#ranks = this.#createRanks();
  }

  run(): EpResult {
    const { sampleEvery, until } = this.#options;
    const simulation = this.#simulation;
    this.#enter('dispatch');
    if (sampleEvery !== undefined) this.#sampleAt(sampleEvery, this.#downLoads());
    const done = (): boolean => this.#isOver || this.#failure !== undefined;
    const end = simulation.run({ until, events: Number.POSITIVE_INFINITY, done });
    if (this.#failure !== undefined) throw this.#failure;
    return this.#result(end);
  }

  #createRanks(): EpRank[] {
    const { protocol, localRate, slowHost } = this.#options;
    const { hosts, ranks } = this.#plan;
    const simulation = this.#simulation;
    const ends: (LaneConnection | undefined)[][] = simulation.hosts.map(() => Array.from({ length: hosts }));
    for (const [rank, peer] of this.#pairs()) {
      const pair = simulation.connect(rank, peer);
      [ends[rank]![Math.floor(peer / ranks)], ends[peer]![Math.floor(rank / ranks)]] = pair;
      this.#connections.push(...pair);
    }
    const all = simulation.hosts.map((host, rank) => {
      const place = Math.floor(rank / ranks);
      host.onConnectionEnd = (_connection, error) => {
        this.#failure ??= error;
      };
      return new EpRank({
        simulation,
        host,
        rank,
        plan: this.#plan,
        protocol,
        ends: ends[rank]!,
        localRate: localRate * (slowHost?.host === place ? slowHost.localFactor : 1),
        onMet: () => this.#rankMet(place),
        onDone: () => this.#rankDone(place),
      });
    });
    for (const [rank, one] of all.entries()) {
      for (let host = 0; host < hosts; host += 1) one.learn(host, all[this.#plan.peer(rank, host)]!.region);
    }
    return all;
  }

  /**
   * All pairs of peers, in the order in which they connect, since an engine looks at its connections in that order:
   * neighbours first, so that no two ranks have the same, or by number where hosts are served by number.
   */
  #pairs(): (readonly [number, number])[] {
    const { hosts, ranks } = this.#plan;
    const pairs: (readonly [number, number])[] = [];
    const numbers = Array.from({ length: hosts * ranks }, (_, rank) => rank);
    for (let step = 1; step < hosts; step += 1) {
      for (const rank of numbers) {
        const other = Math.floor(rank / ranks) + step;
        // Of two hosts, the one from which the other is not behind by more than half.
        if (2 * step < hosts || (2 * step === hosts && other < hosts)) {
          pairs.push([rank, this.#plan.peer(rank, other % hosts)]);
        }
      }
    }
    if (this.#options.protocol.order === 'rotated') return pairs;
    return pairs
      .map(([a, b]) => [Math.min(a, b), Math.max(a, b)] as const)
      .toSorted(([a, b], [c, d]) => a - c || b - d);
  }

  #enter(phase: EpPhase): void {
    const { skew } = this.#options;
    const simulation = this.#simulation;
    this.#phase = phase;
    this.#phases[phase] = {
      start: simulation.now,
      met: 0,
      hostsDone: 0,
      end: 0,
      incast: [],
      dropped: simulation.network.counts.droppedFull,
    };
    this.#met.fill(0);
    this.#done.fill(0);
    simulation.network.clearLoads();
    for (const rank of this.#ranks) simulation.at(simulation.now + skew * this.#random(), () => rank.enter(phase));
  }

  #rankMet(host: number): void {
    const { ranks } = this.#plan;
    this.#met[host] = this.#met[host]! + 1;
    if (this.#met[host] < ranks) return;
    const simulation = this.#simulation;
    const phase = this.#phases[this.#phase]!;
    simulation.at(simulation.now + this.#options.barrier, () => {
      phase.met = simulation.now;
      for (let rank = 0; rank < ranks; rank += 1) this.#ranks[host * ranks + rank]!.begin();
    });
  }

  #rankDone(host: number): void {
    const { ranks, hosts } = this.#plan;
    this.#done[host] = this.#done[host]! + 1;
    if (this.#done[host] < ranks) return;
    const simulation = this.#simulation;
    const phase = this.#phases[this.#phase]!;
    simulation.at(simulation.now + this.#options.barrier, () => {
      phase.hostsDone += 1;
      if (phase.hostsDone < hosts) return;
      phase.end = simulation.now;
      phase.incast = this.#incast();
      phase.dropped = simulation.network.counts.droppedFull - phase.dropped;
      const next = epPhases[epPhases.indexOf(this.#phase) + 1];
      if (next === undefined) this.#isOver = true;
      else this.#enter(next);
    });
  }

  /** Of the links to all ranks, those with the most bytes first. */
  #incast(): EpIncast[] {
    const { topology, network } = this.#simulation;
    const { ranks } = this.#plan;
    return this.#ranks
      .map((_, rank) => {
        const loads = rankLinks(topology, rank, ranks).down.map((link) => network.linkLoad(link));
        return {
          host: Math.floor(rank / ranks),
          rank: rank % ranks,
          bytes: loads.reduce((sum, { bytes }) => sum + bytes, 0),
          queueBytes: Math.max(...loads.map(({ longestQueueBytes }) => longestQueueBytes)),
        };
      })
      .toSorted((a, b) => b.bytes - a.bytes);
  }

  #downLoads(): number[] {
    const { topology, network } = this.#simulation;
    const { ranks, hosts } = this.#plan;
    return Array.from({ length: hosts }, (_, host) =>
      rankLinks(topology, host * ranks, ranks).down.reduce((sum, link) => sum + network.linkLoad(link).bytes, 0),
    );
  }

  #sampleAt(at: number, before: readonly number[]): void {
    const every = this.#options.sampleEvery!;
    const { topology, network } = this.#simulation;
    const { ranks } = this.#plan;
    this.#simulation.at(at, () => {
      const loads = this.#downLoads();
      this.#samples.push({
        at,
        // Loads begin at zero with each call.
        intoGbps: loads.map((bytes, host) => (Math.max(0, bytes - before[host]!) * 8) / (every * 1000)),
        queueBytes: loads.map((_, host) =>
          Math.max(...rankLinks(topology, host * ranks, ranks).down.map((link) => network.queuedBytes(link, at))),
        ),
      });
      this.#sampleAt(at + every, loads);
    });
  }

  #result(end: RunEnd): EpResult {
    const { network, packets, events, fabricLinks } = this.#simulation;
    const statistics = this.#connections.map((connection) => connection.statistics);
    const sum = (pick: (one: (typeof statistics)[number]) => number): number =>
      statistics.reduce((total, one) => total + pick(one), 0);
    return {
      end,
      dispatch: this.#phaseResult('dispatch'),
      combine: this.#phaseResult('combine'),
      network: { ...network.counts },
      transport: {
        segments: sum((one) => one.sentSegments),
        retransmitted: sum((one) => one.retransmittedSegments),
        duplicates: sum((one) => one.duplicateSegments),
        timeouts: sum((one) => one.timeouts),
        acks: sum((one) => one.sentAcks),
      },
      events,
      mostPackets: packets.most,
      longestQueueBytes: Math.max(...fabricLinks.map((link) => network.linkLoad(link).longestQueueBytes)),
      samples: this.#samples,
    };
  }

  #phaseResult(phase: EpPhase): EpPhaseResult {
    const { start = 0, met = 0, end = 0, incast = [], dropped = 0 } = this.#phases[phase] ?? {};
    const plan = this.#plan;
    const times = this.#ranks.map((rank) => rank.times[phase]);
    const arrived = times.reduce((latest, one) => Math.max(latest, one.arrived), 0);
    const arrivals = times.map((one) => one.arrived - one.began).toSorted((a, b) => a - b);
    let rows = 0;
    for (const rank of this.#ranks.keys()) {
      for (let host = 0; host < plan.hosts; host += 1) rows += plan.rows(phase, rank, host);
    }
    return {
      meeting: met - start,
      rows: arrived - met,
      tail: end - arrived,
      total: end - start,
      bounds: epBounds(this.#options, plan, phase),
      otherRows: this.#otherRows(phase),
      arrivals: { p50: quantile(arrivals, 0.5), max: quantile(arrivals, 1) },
      rowBytes: rows * plan.rowBytes(phase),
      incast,
      meanLinkBytes: incast.reduce((total, { bytes }) => total + bytes, 0) / Math.max(1, incast.length),
      dropped,
    };
  }

  #otherRows(phase: EpPhase): number {
    const { protocol } = this.#options;
    const rows = protocol.rows === 'per-host' ? 'per-expert' : 'per-host';
    const options = { ...this.#options, protocol: { ...protocol, rows } } as const;
    return epBounds(options, new EpPlan(options, this.#traffic), phase).rows;
  }
}
