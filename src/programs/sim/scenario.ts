// A random scenario, all of it determined by a seed: who sends what to whom over which network, and what goes wrong.
import { PART_BYTES } from '../../transport/engine-commands.ts';
import { seededRandom } from '../../core/seeded-random.ts';
import { type Settings, settingsTable } from '../../settings/settings.ts';
import {
  changeRail,
  fatTree,
  leafSpine,
  type LinkOptions,
  type NetworkTopology,
  pathLinks,
  railLinks,
  separateRails,
  star,
} from './topology.ts';
import type { LinkFault } from './pattern-run.ts';
import type { RailOptions } from './simulated-host.ts';

/** Times are microseconds, `from` is the end of the connection (0 or 1) that begins the operation. */
interface OperationPlace {
  readonly connection: number;
  readonly from: 0 | 1;
  readonly flow: number;
  readonly at: number;
}

export interface MessageOperation extends OperationPlace {
  readonly kind: 'message';
  readonly bytes: number;
  /** Bytes of the receive; with less than `bytes` the message must fail at both ends. */
  readonly room: number;
  readonly receiveAt: number;
}

interface RemoteOperation extends OperationPlace {
  readonly kind: 'write' | 'read';
  readonly bytes: number;
  /** The key is wrong: nothing may be written or read, and the request must fail. */
  readonly badKey: boolean;
}

export type ScenarioOperation =
  | MessageOperation
  | RemoteOperation
  | (OperationPlace & { readonly kind: 'signal'; readonly add: number })
  | (OperationPlace & { readonly kind: 'flush' });

/** One end withdraws its request for an operation, if that has been posted and has not ended. */
export interface Cancellation {
  /** Index of the operation. */
  readonly operation: number;
  /** The end that begins the operation, or the one that answers it. */
  readonly by: 'near' | 'far';
  readonly at: number;
}

/** One end of a connection closes it. */
export interface Closing {
  readonly connection: number;
  readonly end: 0 | 1;
  readonly at: number;
}

export interface Scenario {
  readonly seed: number;
  readonly topology: NetworkTopology;
  /** Paths of each lane of a connection. */
  readonly paths: number;
  /** Engines of each host; one if missing. */
  readonly engines?: number;
  readonly segmentBytes: number;
  readonly rail: RailOptions;
  readonly pollDelay: number;
  readonly settings: Partial<Settings>;
  /** The hosts of each connection's ends. */
  readonly connections: readonly (readonly [number, number])[];
  /** The operations in order of time within each connection, end and flow. */
  readonly operations: readonly ScenarioOperation[];
  readonly faults: readonly LinkFault[];
  readonly deaths: readonly { readonly host: number; readonly at: number }[];
  readonly cancellations: readonly Cancellation[];
  readonly closings: readonly Closing[];
}

/** Bytes that all operations of a scenario move, but for its largest one. */
const USUAL_BYTES = 400_000;
/** Operations that are withdrawn have flows of their own, from this one on. */
const CANCELLED_FLOWS = 30_000;

export function makeScenario(seed: number): Scenario {
  const dice = new Dice(seededRandom(seed));
  const wanted = dice.chance(0.5) ? 2 : dice.integer(3, 6);
  const paths = dice.chance(0.2) ? 1 : dice.pick([2, 3, 4, 8, 16, 64]);
  const link = makeLink(dice);
  // Drawn separately, so that the rest of a seed's scenario does not depend on them.
  const more = new Dice(seededRandom(seed ^ 0x1a9e5));
  const { topology, disjoint } = makeRails(more, makeTopology(dice, { hosts: wanted, paths, link, salt: seed }));
  const { hosts } = topology;
  const connections = makeConnections(dice, hosts);
  // Some are so slow that waiting alone is longer than the time after which a peer counts as lost.
  const span = dice.chance(0.05) ? dice.real(10_000_000, 40_000_000) : dice.exponential(10, 20_000);
  const { operations: drawn, cancellations } = makeOperations(dice, connections, span);
  const engines = more.chance(0.4) ? 1 : more.pick([2, 2, 3, 4, 8]);
  const operations = engines === 1 ? drawn : enlargeSome(more, drawn);
  return {
    seed,
    topology,
    paths,
    engines,
    segmentBytes: dice.pick([512, 1024, 1400, 2048, 4096, 8928]),
    rail: {
      burstSegments: dice.pick([1, 2, 16, 64]),
      sendBufferBytes: dice.exponential(20_000, 2_000_000),
      carryPayload: true,
      join: dice.chance(0.5),
    },
    pollDelay: dice.chance(0.3) ? 0 : dice.exponential(0.1, 50),
    settings: {
      ...makeSettings(dice, link.corrupt > 0),
      transportSpread: more.pick(settingsTable.transportSpread.choices),
      transportEagerBytes: new Dice(seededRandom(seed ^ 0xea6e)).pick([0, 64, 1024, 1024, 8192]),
      transportAuthentication: new Dice(seededRandom(seed ^ 0x7a65)).chance(link.corrupt > 0 ? 0.6 : 0.25),
    },
    connections,
    operations,
    faults: [
      ...makeFaults(dice, { topology, paths, disjoint, span }),
      ...makeRailFaults(more, { topology, paths, disjoint, span }),
    ],
    deaths: dice.chance(0.06) ? [{ host: dice.integer(0, hosts - 1), at: dice.real(0, span) }] : [],
    cancellations,
    closings: dice.chance(0.06)
      ? [{ connection: dice.integer(0, connections.length - 1), end: dice.pick([0, 1]), at: dice.real(0, span) }]
      : [],
  };
}

/** Random choices by name. */
export class Dice {
  readonly #random: () => number;

  constructor(random: () => number) {
    this.#random = random;
  }

  chance(probability: number): boolean {
    return this.#random() < probability;
  }

  real(min: number, max: number): number {
    return min + this.#random() * (max - min);
  }

  /** Both ends included. */
  integer(min: number, max: number): number {
    return min + Math.floor(this.#random() * (max - min + 1));
  }

  /** Every order of magnitude is as likely as any other. */
  exponential(min: number, max: number): number {
    return min * (max / min) ** this.#random();
  }

  pick<T>(choices: readonly T[]): T {
    return choices[Math.floor(this.#random() * choices.length)] as T;
  }
}

function makeLink(dice: Dice): LinkOptions {
  const sometimes = (probability: number, min: number, max: number): number =>
    dice.chance(probability) ? dice.exponential(min, max) : 0;
  const gigabitsPerSecond = dice.exponential(0.5, 400);
  const queueBytes = dice.exponential(20_000, 4_000_000);
  return {
    gigabitsPerSecond,
    delay: dice.exponential(0.1, 200),
    queueBytes,
    ecnBytes: dice.chance(0.5) ? queueBytes * dice.real(0.1, 0.9) : Number.POSITIVE_INFINITY,
    loss: sometimes(0.5, 0.0005, 0.05),
    reorder: sometimes(0.4, 0.001, 0.5),
    jitter: dice.exponential(0.5, 300),
    duplicate: sometimes(0.3, 0.001, 0.1),
    corrupt: sometimes(0.2, 0.001, 0.01),
  };
}

/** A topology; `disjoint`: paths share no link between switches, so that one of them can die while the others live. */
type DrawnTopology = Pick<FaultDraft, 'topology' | 'disjoint'>;

function makeTopology(
  dice: Dice,
  { hosts, paths, link, salt }: Readonly<Record<'hosts' | 'paths' | 'salt', number>> & { readonly link: LinkOptions },
): DrawnTopology {
  const fabric = { ...link, gigabitsPerSecond: link.gigabitsPerSecond * dice.real(0.5, 1.5) };
  switch (dice.integer(0, 8)) {
    case 8:
      return { topology: fatTree({ ports: 4, link, fabric, ecmp: salt }), disjoint: false };
    case 0:
    case 4:
      return { topology: star({ hosts, link }), disjoint: false };
    case 1:
    case 5:
      return { topology: separateRails(star({ hosts, link }), Math.min(paths, 8)), disjoint: paths > 1 };
    case 2:
    case 6: {
      const shape = { leaves: hosts, hostsPerLeaf: 1, spines: Math.min(paths, 8) };
      return { topology: leafSpine({ ...shape, link, fabric, ecmp: 'path' }), disjoint: paths > 1 };
    }
    default: {
      const shape = { leaves: hosts, hostsPerLeaf: 1, spines: dice.integer(1, 4) };
      return { topology: leafSpine({ ...shape, link, fabric, ecmp: salt }), disjoint: false };
    }
  }
}

/** Some hosts have several rails, each with a network of its own, and sometimes one of them loses more than the others. */
function makeRails(dice: Dice, drawn: DrawnTopology): DrawnTopology {
  if (dice.chance(0.5) || drawn.topology.rails > 1) return drawn;
  const rails = dice.pick([2, 3, 4, 8]);
  const topology = separateRails(drawn.topology, rails);
  if (dice.chance(0.7)) return { ...drawn, topology };
  const lossy = changeRail(topology, dice.integer(0, rails - 1), { loss: dice.exponential(0.01, 0.05) });
  return { ...drawn, topology: lossy };
}

/** A rail that dies, and where there are paths on others, sometimes for ever. */
function makeRailFaults(dice: Dice, { topology, paths, disjoint, span }: FaultDraft): LinkFault[] {
  if (topology.rails === 1 || !dice.chance(0.3)) return [];
  const at = dice.real(0, span);
  const recoversAt = at + dice.exponential(10, 50_000);
  // Nothing might be left where a path may die for ever as well.
  const isForEver = paths > 1 && !disjoint && dice.chance(0.5);
  const dying = railLinks(topology, dice.integer(0, topology.rails - 1));
  return dying.map((link) => (isForEver ? { link, at } : { link, at, recoversAt }));
}

function makeSettings(dice: Dice, corrupt: boolean): Partial<Settings> {
  return {
    transportCongestion: dice.pick(settingsTable.transportCongestion.choices),
    transportReceiverCredits: dice.chance(0.2),
    transportCongestionScope: dice.pick(settingsTable.transportCongestionScope.choices),
    transportWindowBytes: Math.round(dice.exponential(16_384, 2_097_152)),
    transportWindowSegments: dice.pick([64, 256, 1024, 4096]),
    transportCtsBytes: Math.round(dice.exponential(16_384, 4_194_304)),
    transportCtsChunkBytes: Math.round(dice.exponential(4096, 262_144)),
    transportMinRtoUs: Math.round(dice.exponential(200, 5000)),
    transportAckDelayUs: dice.chance(0.2) ? 0 : Math.round(dice.exponential(1, 200)),
    transportAckSegments: dice.integer(1, 64),
    transportGiveUpMs: 10_000,
    transportKeepAliveMs: 500,
    transportChecksum: corrupt ? 'full' : dice.pick(settingsTable.transportChecksum.choices),
  };
}

function makeConnections(dice: Dice, hosts: number): [number, number][] {
  const count = hosts === 2 ? 1 : dice.integer(1, Math.min(6, (hosts * (hosts - 1)) / 2));
  const seen = new Set<string>();
  const connections: [number, number][] = [];
  while (connections.length < count) {
    const a = dice.integer(0, hosts - 1);
    const b = dice.integer(0, hosts - 1);
    const key = `${Math.min(a, b)} ${Math.max(a, b)}`;
    if (a === b || seen.has(key)) continue;
    seen.add(key);
    connections.push([a, b]);
  }
  return connections;
}

function makeOperations(dice: Dice, connections: readonly (readonly [number, number])[], span: number) {
  const operations: ScenarioOperation[] = [];
  const cancellations: Cancellation[] = [];
  // Many flows have few messages each.
  const flows = dice.chance(0.2) ? Array.from({ length: 64 }, (_, flow) => flow * 16) : [0, 0, 1, 2, 65_535];
  let left = dice.exponential(1000, USUAL_BYTES);
  const count = dice.integer(1, 40);
  // The clock of each (connection, end, flow): its operations are posted in the order in which they are made.
  const clocks = new Map<string, { at: number; receiveAt: number }>();
  for (let index = 0; index < count; index += 1) {
    const connection = dice.integer(0, connections.length - 1);
    const from = dice.pick([0, 1] as const);
    const cancelled = dice.chance(0.05);
    // Messages and receives of a flow would meet others than meant if one of their ends were withdrawn.
    const flow = cancelled ? CANCELLED_FLOWS + index : dice.pick(flows);
    const key = `${connection} ${from} ${flow}`;
    const clock = clocks.get(key) ?? { at: dice.real(0, span), receiveAt: dice.real(0, span) };
    clocks.set(key, clock);
    clock.at += dice.chance(0.5) ? 0 : dice.real(0, span / 4);
    const place = { connection, from, flow, at: clock.at };
    const bytes = index === 0 && dice.chance(0.03) ? dice.integer(1_000_000, 5_000_000) : makeSize(dice, left);
    left = Math.max(0, left - bytes);
    const kind = dice.integer(0, 9);
    if (kind === 8) operations.push({ ...place, kind: 'signal', add: dice.integer(1, 1_000_000) });
    else if (kind === 9) operations.push({ ...place, kind: 'flush' });
    else if (kind > 4) {
      const badKey = dice.chance(0.03);
      operations.push({ ...place, kind: kind === 7 ? 'read' : 'write', bytes, badKey });
    } else {
      clock.receiveAt += dice.chance(0.5) ? 0 : dice.real(0, span / 4);
      const room = bytes > 0 && dice.chance(0.03) ? bytes - 1 : bytes + (dice.chance(0.3) ? dice.integer(1, 5000) : 0);
      operations.push({ ...place, kind: 'message', bytes, room, receiveAt: clock.receiveAt });
    }
    if (cancelled) cancellations.push(...makeCancellations(dice, operations, span));
  }
  return { operations, cancellations };
}

/** What is spread over engines is larger than most operations are. */
function enlargeSome(dice: Dice, operations: readonly ScenarioOperation[]): readonly ScenarioOperation[] {
  let left = 4;
  return operations.map((operation) => {
    if (!('bytes' in operation) || left === 0 || !dice.chance(0.2)) return operation;
    left -= 1;
    const bytes = dice.integer(2 * PART_BYTES, 10 * PART_BYTES);
    if (operation.kind !== 'message') return { ...operation, bytes };
    const room = operation.room - operation.bytes + bytes;
    return { ...operation, bytes, room };
  });
}

/** The last operation is withdrawn some time after it was posted; a message at both ends, or one would wait for ever. */
function makeCancellations(dice: Dice, operations: readonly ScenarioOperation[], span: number): Cancellation[] {
  const operation = operations.length - 1;
  const last = operations[operation] as ScenarioOperation;
  const after = (at: number): number => at + (dice.chance(0.5) ? dice.exponential(0.1, 200) : dice.real(0, span / 4));
  const near = { operation, by: 'near', at: after(last.at) } as const;
  if (last.kind === 'message') return [near, { operation, by: 'far', at: after(last.receiveAt) }];
  return last.kind === 'write' || last.kind === 'read' ? [near] : [];
}

function makeSize(dice: Dice, most: number): number {
  if (dice.chance(0.1)) return 0;
  if (dice.chance(0.2)) return dice.integer(1, 64);
  return Math.round(dice.exponential(1, Math.max(2, most)));
}

interface FaultDraft {
  readonly topology: NetworkTopology;
  readonly paths: number;
  readonly disjoint: boolean;
  readonly span: number;
}

/** Links that fail for a while, and where others remain, a path that fails for ever. */
function makeFaults(dice: Dice, { topology, paths, disjoint, span }: FaultDraft): LinkFault[] {
  const faults: LinkFault[] = [];
  if (dice.chance(0.25)) {
    for (let count = dice.integer(1, 4); count > 0; count -= 1) {
      const at = dice.real(0, span);
      const recoversAt = at + dice.exponential(10, 50_000);
      faults.push({ link: dice.integer(0, topology.links.length - 1), at, recoversAt });
    }
  }
  if (disjoint && dice.chance(0.2)) {
    const path = dice.integer(0, paths - 1);
    const at = dice.real(0, span);
    for (const link of pathLinks(topology, path, paths)) faults.push({ link, at });
  }
  return faults;
}
