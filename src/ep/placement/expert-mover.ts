// ExpertMover: brings the weights of experts to the ranks of a new plan while traffic goes on, then all ranks change over.
import { createHash, randomBytes } from 'node:crypto';
import type { Registration } from '../../agent/registration.ts';
import type { RemoteMemory } from '../../agent/remote-agent.ts';
import { checkOptions, isWhole, type OptionNames } from '../../core/check-options.ts';
import {
  type CallWait,
  Deadline,
  remaining,
  startCall,
  waitOptionNames,
  type WaitOptions,
  within,
} from '../../core/deadline.ts';
import {
  asWeftlineError,
  blamedRanks,
  decodeError,
  type EncodedError,
  invalidArgument,
  WeftlineError,
} from '../../core/errors.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import { CallGuard } from '../../group/call-guard.ts';
import { meetAcrossHosts } from '../../group/network/peer-meeting.ts';
import type { SharedAgent } from '../../group/network/shared-agent.ts';
import { requireGroup } from '../../group/tensor-check.ts';
import { encodeFailure, shareOutcome } from '../../world/outcomes.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { ExpertChecksums, ExpertMemory, type ExpertSources, fetchExperts, type Half } from './fetch-experts.ts';
import { type ExpertPlan, requirePlan } from './expert-plan.ts';
import { Placement } from './placement.ts';

// What ranks tell each other of the plans that they were given, and in which words plans differ.

const sizes = ['layers', 'experts', 'ranks', 'physical'] as const;
const DIGEST_BYTES = 12;
/** Layers that an error lists. */
const MAX_LISTED = 8;

/** A plan in short: JSON. */
interface PlanFacts extends Readonly<Record<(typeof sizes)[number], number>> {
  /** Digests of the tables of physical experts, one for each layer. */
  readonly tables: readonly string[];
}

function factsOf(plan: ExpertPlan): PlanFacts {
  const { layers, experts, ranks, physical, physicalToLogical } = plan;
  const tables = Array.from({ length: layers }, (_, layer) => {
    const table = physicalToLogical.slice(layer * physical, (layer + 1) * physical);
    return createHash('sha256').update(new Uint8Array(table.buffer)).digest('base64').slice(0, DIGEST_BYTES);
  });
  return { layers, experts, ranks, physical, tables };
}

/**
 * Fails with WL_CONFIG_MISMATCH where the plan of a rank is not that of the first one. `what` begins the error: "The ranks cut
 * over with different plans"; `worldRanks` are for errors.
 */
function requireSamePlan(what: string, all: readonly PlanFacts[], worldRanks: readonly number[]): void {
  const first = all[0]!;
  for (const [rank, facts] of all.entries()) {
    const ranks = [worldRanks[0]!, worldRanks[rank]!] as const;
    for (const field of sizes) requireSame(`${what}: plan.${field}`, [first[field], facts[field]], ranks);
    const layers = [...facts.tables.keys()].filter((layer) => facts.tables[layer] !== first.tables[layer]);
    if (layers.length === 0) continue;
    const listed = layers.slice(0, MAX_LISTED).join(', ') + (layers.length > MAX_LISTED ? ', …' : '');
    throw new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `${what}: rank ${ranks[1]} has other experts than rank ${ranks[0]} in ${layers.length === 1 ? 'layer' : 'layers'} ${listed} of ${facts.layers}`,
      { details: { ranks, layers } },
    );
  }
}

/** Fails with WL_CONFIG_MISMATCH, with the values of both ranks. */
function requireSame(what: string, [first, other]: readonly [number, number], ranks: readonly [number, number]): void {
  if (first === other) return;
  throw new WeftlineError(
    'WL_CONFIG_MISMATCH',
    `${what} is ${first} on rank ${ranks[0]} and ${other} on rank ${ranks[1]}`,
    {
      details: { ranks, values: [first, other] },
    },
  );
}

/** The part of the time of cutOver() that weights which are still on their way may take. */
const READY_SHARE = 0.9;

/** What a rank tells the others when the mover is made. */
interface Told {
  readonly agent: string;
  readonly metadata: string;
  readonly region: number;
  readonly plan: PlanFacts;
  readonly expertBytes: number;
  /** Checksums of the experts, by layer and slot. */
  readonly checksums: readonly number[];
  readonly id: string;
}

/** Weights on their way. */
interface Staged {
  readonly plan: ExpertPlan;
  readonly done: Promise<void>;
  readonly ending: AbortController;
}

/**
 * Holds the weights of this rank's experts twice: those in force, which never change, and those of the next epoch. `stage()`
 * reads what a new plan needs from the ranks that have it, through the rank's agent, while dispatch and combine go on, and
 * checks every expert's CRC-32C. `cutOver()` takes the new plan into force on all ranks or on none, and counts the epoch. A
 * rank that dies or gets wrong bytes leaves the earlier plan in force everywhere, and the error names it.
 */
export class ExpertMover implements AsyncDisposable {
  readonly group: RankGroup;
  readonly #guard: CallGuard;
  readonly #memory: ExpertMemory;
  readonly #shared: SharedAgent;
  readonly #registration: Registration;
  /** The agent of each rank, and the number of its memory there. */
  readonly #peers = new Map<number, { readonly agent: string; readonly region: number }>();
  #checksums: ExpertChecksums | undefined;
  #id = '';
  #placement: Placement;
  #epoch = 0;
  #steps = 0;
  #staged: Staged | undefined;
  #failure: WeftlineError | undefined;
  #closing: Promise<void> | undefined;

  /**
   * Collective over the group. Fails alike on all ranks: WL_INVALID_ARGUMENT, WL_MEMORY, WL_CONFIG_MISMATCH if plans,
   * `expertBytes` or copies of one expert differ, WL_TIMEOUT. If `load` throws, the error has its code (WL_INVALID_ARGUMENT if it has none), names
   * the expert and the rank, and has what was thrown as its cause.
   * @param group The ranks of the plan.
   * @param device This rank's; it has the memory, which is twice that of the rank's experts.
   * @param options The plan in force at first, and the weights.
   * @param wait How long to wait for the others and to load the weights.
   */
  static async create(
    group: RankGroup,
    device: CpuDevice,
    options: ExpertMoverOptions,
    wait: WaitOptions = {},
  ): Promise<ExpertMover> {
    requireGroup(group);
    checkOptions(wait, waitOptionNames, 'wait options of ExpertMover.create');
    const call = startCall(wait, group.settings.timeoutMs);
    const made: { mover?: ExpertMover; failure?: WeftlineError } = {};
    const tell = async (): Promise<Told> => {
      checkMover(group, device, options);
      made.mover = await ExpertMover.#open(group, device, options);
      return made.mover.#load(options, (failure) => (made.failure = failure));
    };
    try {
      const connect = (told: readonly Told[]): Promise<void> => (made.mover as ExpertMover).#connect(told);
      await meetAcrossHosts(group, { name: 'ep/expert-mover', tell, connect }, call);
      return made.mover as ExpertMover;
    } catch (error) {
      await made.mover?.close();
      // What this rank's own function threw is the cause as it was, not as it was told to the others.
      throw asWeftlineError(error).message === made.failure?.message ? made.failure : error;
    }
  }

  static async #open(group: RankGroup, device: CpuDevice, options: ExpertMoverOptions): Promise<ExpertMover> {
    const placement = new Placement(options.plan, { rank: group.rank, hosts: group.topology.hosts });
    const { layers } = options.plan;
    const memory = new ExpertMemory(device, { layers, slots: placement.slots, expertBytes: options.expertBytes });
    let shared: SharedAgent | undefined;
    try {
      // Loaded here, so that programs whose experts stay where they are never load an agent.
      const { SharedAgent: Shared } = await import('../../group/network/shared-agent.ts');
      shared = await Shared.open(group);
      const registration = await shared.agent.register(memory.tensor, { name: 'experts' });
      return new ExpertMover({ group, memory, shared, registration, placement });
    } catch (error) {
      await shared?.close();
      memory[Symbol.dispose]();
      throw error;
    }
  }

  private constructor(parts: {
    readonly group: RankGroup;
    readonly memory: ExpertMemory;
    readonly shared: SharedAgent;
    readonly registration: Registration;
    readonly placement: Placement;
  }) {
    this.group = parts.group;
    this.#guard = new CallGuard('ExpertMover', parts.group.ranks);
    this.#memory = parts.memory;
    this.#shared = parts.shared;
    this.#registration = parts.registration;
    this.#placement = parts.placement;
  }

  /** The placement in force: route choices by it, and take weights from `weights`, until the next cutOver(). */
  get placement(): Placement {
    return this.#placement;
  }

  /** How often the ranks have cut over; the same on all of them. */
  get epoch(): number {
    return this.#epoch;
  }

  /** u8 [layers, slots, expertBytes]: the weights of `placement.localExperts(layer)`. Not to be written to; after the next cutOver() it is another tensor. */
  get weights(): Tensor<'u8'> {
    this.#guard.requireOpen();
    return this.#memory.half(this.#half);
  }

  /**
   * Brings the weights of this rank's experts of the next plan here, while anything else goes on; resolves when all are here
   * and verified. Nothing changes for anybody before cutOver(), which all ranks call with the same plan staged. Fails with
   * WL_INVALID_ARGUMENT for a plan of another shape or while another one is under way, WL_CHECK for bytes that are not those
   * that were loaded, WL_PEER_LOST, WL_TIMEOUT; cutOver() then fails on all ranks with that error, so the promise need not be
   * awaited.
   */
  stage(plan: ExpertPlan, wait: WaitOptions = {}): Promise<void> {
    this.#guard.requireOpen();
    checkOptions(wait, waitOptionNames, 'wait options of stage');
    if (this.#failure !== undefined) throw this.#failure;
    this.#checkPlan(plan);
    if (this.#staged !== undefined) {
      throw new WeftlineError(
        'WL_INVALID_ARGUMENT',
        'Cannot stage a plan: one is staged already; call cutOver() first',
      );
    }
    const ending = new AbortController();
    const call = startCall(wait, this.group.settings.timeoutMs);
    const signal = call.signal === undefined ? ending.signal : AbortSignal.any([ending.signal, call.signal]);
    const done = fetchExperts(this.#sources(), plan, { ...call, signal }).catch((error: unknown) => {
      throw this.#firstCause(error);
    });
    // It is told to those who wait for it, and by cutOver().
    done.catch(() => undefined);
    this.#staged = { plan, done, ending };
    return done;
  }

  /**
   * Collective; to be called by all ranks after the same step, when no row is under way. Waits until every rank has its
   * weights, then takes the staged plan into force and returns the new epoch. If it fails, it fails on all ranks that live,
   * with the reason of the first that had one; the plan in force stays, what was staged is dropped, and another one may be staged,
   * unless a rank was lost: later calls of stage() and cutOver() fail with that error.
   */
  cutOver(wait: WaitOptions = {}): Promise<number> {
    checkOptions(wait, waitOptionNames, 'wait options of cutOver');
    return this.#guard.run('cutOver', async () => {
      if (this.#failure !== undefined) throw this.#failure;
      const call = startCall(wait, this.group.settings.timeoutMs);
      const staged = this.#staged;
      try {
        await this.#agree(staged, call);
      } catch (error) {
        if (this.#hasLostRank(error)) this.#failure ??= asWeftlineError(error);
        await this.#drop();
        throw error;
      }
      this.#placement = this.#placementOf((staged as Staged).plan);
      this.#epoch++;
      this.#staged = undefined;
      return this.#epoch;
    });
  }

  /** Gives the memory back, once no peer reads it. Not collective; ranks that still read from this one get an error. Idempotent. */
  async close(): Promise<void> {
    if (this.#guard.close()) this.#closing = this.#close();
    await this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  get #half(): Half {
    return this.#epoch % 2 === 0 ? 0 : 1;
  }

  async #agree(staged: Staged | undefined, wait: ReturnType<typeof startCall<CallWait>>): Promise<void> {
    const ready = async (signal: AbortSignal): Promise<void> => {
      if (staged === undefined) {
        throw new WeftlineError(
          'WL_INVALID_ARGUMENT',
          `Cannot cut over: rank ${this.group.worldRank} has staged no plan`,
        );
      }
      // The rest of the time is for telling the others.
      const deadline = new Deadline(wait.deadline.leftMs * READY_SHARE);
      await within(staged.done, { deadline, signal }, () => this.#late(deadline.timeoutMs)).catch(
        async (error: unknown) => {
          // The others wait for this rank: they must hear of it before their time is over.
          throw await this.group.firstCause(error, { patienceMs: wait.deadline.leftMs / 2 });
        },
      );
    };
    // A rank that has staged none is not ready, so that nothing is compared.
    const facts = factsOf((staged ?? this.#placement).plan);
    const compare = (all: readonly PlanFacts[]): void => {
      requireSamePlan('The ranks cut over with different plans', all, this.group.ranks);
    };
    const step = { name: `ep/expert-mover/${this.#id}`, number: this.#steps++, facts, compare, ready };
    await cutOverTogether(this.group, step, wait, (error) => (this.#failure = error));
  }

  /** No later step can be taken without a lost rank: nobody has its experts, and it does not agree any more. */
  #hasLostRank(error: unknown): boolean {
    return this.group.peerLost.aborted || asWeftlineError(error).code === 'WL_PEER_LOST';
  }

  /** A peer that gave up because of a lost rank takes its weights back: the rank that was lost first is the reason. */
  #firstCause(error: unknown): unknown {
    const { peerLost } = this.group;
    const [first] = blamedRanks(peerLost.reason);
    if (!peerLost.aborted || first === undefined || blamedRanks(error).includes(first)) return error;
    const { code, message, details } = asWeftlineError(peerLost.reason);
    const text = `${message} (and so: ${asWeftlineError(error).message})`;
    return new WeftlineError(code, text, { details, rank: first, cause: error });
  }

  #late(timeoutMs: number): WeftlineError {
    const { worldRank } = this.group;
    return new WeftlineError(
      'WL_TIMEOUT',
      `Rank ${worldRank} did not have its weights within ${Math.round(timeoutMs)} ms`,
      {
        details: { ranks: [worldRank], timeoutMs },
      },
    );
  }

  /** Nothing of it may still be written when the next plan is staged. */
  async #drop(): Promise<void> {
    const staged = this.#staged;
    this.#staged = undefined;
    staged?.ending.abort(new WeftlineError('WL_CLOSED', 'The staged plan was dropped'));
    await staged?.done.catch(() => undefined);
  }

  async #close(): Promise<void> {
    await this.#drop();
    try {
      // Closing the agent gives up its memory as well.
      if (!this.#shared.isLast) await this.#registration.close();
    } finally {
      await this.#shared.close();
    }
    // A failure above keeps the memory, because a peer may still read it.
    this.#memory[Symbol.dispose]();
  }

  async #load(
    { plan, expertBytes, load }: ExpertMoverOptions,
    onFailure: (error: WeftlineError) => void,
  ): Promise<Told> {
    const { agent } = this.#shared;
    const checksums: number[] = [];
    for (let layer = 0; layer < plan.layers; layer++) {
      for (const [slot, expert] of this.#placement.localExperts(layer).entries()) {
        try {
          await load({ layer, expert, bytes: this.#memory.bytes(0, layer, slot) });
        } catch (error) {
          const failure = cannotLoad(error, { layer, expert, rank: this.group.worldRank });
          onFailure(failure);
          throw failure;
        }
        checksums.push(await this.#memory.checksum(0, layer, slot));
      }
    }
    const metadata = Buffer.from(agent.localMetadata({ regions: [this.#registration] })).toString('base64');
    return {
      agent: agent.name,
      metadata,
      region: this.#registration.number,
      plan: factsOf(plan),
      expertBytes,
      checksums,
      id: randomBytes(8).toString('hex'),
    };
  }

  async #connect(told: readonly Told[]): Promise<void> {
    this.#id = told[0]!.id;
    const { ranks } = this.group;
    const what = 'The ranks made an ExpertMover of different';
    for (const [rank, { expertBytes }] of told.entries()) {
      requireSame(`${what} sizes: expertBytes`, [told[0]!.expertBytes, expertBytes], [ranks[0]!, ranks[rank]!]);
    }
    requireSamePlan(
      `${what} plans`,
      told.map(({ plan }) => plan),
      ranks,
    );
    this.#checksums = new ExpertChecksums(
      this.#placement.plan,
      told.map(({ checksums }) => checksums),
      this.group.ranks,
    );
    for (const [rank, { agent, metadata, region }] of told.entries()) {
      if (rank === this.group.rank) continue;
      await this.#shared.load(agent, Buffer.from(metadata, 'base64'), [region]);
      this.#peers.set(rank, { agent, region });
    }
  }

  #sources(): ExpertSources {
    const half = this.#half;
    return {
      placement: this.#placement,
      memory: this.#memory,
      half,
      agent: this.#shared.agent,
      registration: this.#registration,
      worldRanks: this.group.ranks,
      checksums: this.#checksums as ExpertChecksums,
      peer: (rank) => this.#peerMemory(rank),
    };
  }

  #peerMemory(rank: number): { readonly agent: string; readonly memory: RemoteMemory } {
    const { agent, region } = this.#peers.get(rank)!;
    const memory = this.#shared.agent.remoteMemory(agent).find(({ number }) => number === region);
    return { agent, memory: memory as RemoteMemory };
  }

  #placementOf(plan: ExpertPlan): Placement {
    return new Placement(plan, { rank: this.group.rank, hosts: this.group.topology.hosts });
  }

  #checkPlan(plan: ExpertPlan): void {
    requirePlan(plan);
    const now = this.#placement.plan;
    for (const field of ['layers', 'experts', 'ranks', 'physical'] as const) {
      if (plan[field] === now[field]) continue;
      throw invalidArgument(`plan.${field}`, plan[field], `${now[field]}, as in the plan in force`);
    }
  }
}

/** The error of the caller's own function, under its code. */
function cannotLoad(
  cause: unknown,
  where: { readonly layer: number; readonly expert: number; readonly rank: number },
): WeftlineError {
  const { layer, expert, rank } = where;
  const code = cause instanceof WeftlineError ? cause.code : 'WL_INVALID_ARGUMENT';
  const why = cause instanceof Error ? cause.message : String(cause);
  return new WeftlineError(
    code,
    `The function load of ExpertMover.create failed for expert ${expert} of layer ${layer} on rank ${rank}: ${why}`,
    { details: { argument: 'load', ...where }, cause },
  );
}

// What ExpertMover.create() takes, and the checks of it.

/** An expert whose weights are to be loaded. */
export interface ExpertToLoad {
  readonly layer: number;
  /** Logical number of the expert. */
  readonly expert: number;
  /** [expertBytes]: where its weights go, in place; any layout, the same for all copies. */
  readonly bytes: Uint8Array;
}

/** What an ExpertMover begins with. */
export interface ExpertMoverOptions {
  /** The plan in force at first, the same on all ranks; later plans have its layers, experts, ranks and physical experts. */
  readonly plan: ExpertPlan;
  /** Bytes of the weights of one expert of one layer, a multiple of 16. */
  readonly expertBytes: number;
  /** Fills in the weights of an expert of this rank; called once for each slot of each layer. */
  readonly load: (expert: ExpertToLoad) => void | Promise<void>;
}

const optionNames: OptionNames<ExpertMoverOptions> = { plan: true, expertBytes: true, load: true };

/** Fails with WL_INVALID_ARGUMENT. */
function checkMover(group: RankGroup, device: unknown, options: ExpertMoverOptions): void {
  checkOptions(options, optionNames, 'options of ExpertMover.create');
  const { plan, expertBytes, load } = options;
  if (!(device instanceof CpuDevice)) throw invalidArgument('device', device, 'a CpuDevice');
  requirePlan(plan);
  if (plan.ranks !== group.size)
    throw invalidArgument('plan.ranks', plan.ranks, `${group.size}, the ranks of the group`);
  if (!isWhole(expertBytes, 16) || expertBytes % 16 !== 0) {
    throw invalidArgument('expertBytes', expertBytes, 'a positive multiple of 16');
  }
  if (typeof load !== 'function')
    throw invalidArgument('load', load, 'a function that fills in the weights of an expert');
}

// A step that all ranks take or none: they tell each other how they fared, then the first to reach the store decides for all.

/** Beyond the deadline: the ranks that waited in vain until then still decide. */
const DECISION_MS = 5000;

interface CutOver<Facts> {
  /** Name of the exchange and of the decision in the store; no other step of the group has it with the same number. */
  readonly name: string;
  readonly number: number;
  /** What this rank tells the others; JSON. */
  readonly facts: Facts;
  /** Fails if the ranks, whose facts these are, cannot take the step together. Called if all are ready. */
  readonly compare: (all: readonly Facts[]) => void;
  /** Resolves when this rank can take the step. The signal says that it need not wait any longer. */
  readonly ready: (signal: AbortSignal) => Promise<void>;
}

/** Why the step is not taken; null if it is. */
interface Decision {
  readonly error: EncodedError | null;
}

/**
 * Collective. Resolves if the step is taken, fails if it is not, alike on all ranks that live and reach the store: a rank
 * that waited in vain for others learns what those have decided that did not, and else decides against it for all. `onUndecided`
 * is called if this rank cannot learn it.
 */
async function cutOverTogether<Facts>(
  group: RankGroup,
  step: CutOver<Facts>,
  wait: CallWait,
  onUndecided: (error: WeftlineError) => void,
): Promise<void> {
  const key = `${step.name}/${step.number}`;
  const proposal: Decision = { error: await whyNot(group, { ...step, key }, wait) };
  let decision: Decision;
  try {
    const desired = Buffer.from(JSON.stringify(proposal));
    const deadline = new Deadline((wait.deadline?.leftMs ?? group.settings.timeoutMs) + DECISION_MS);
    const { value } = await within(group.store.compareAndSet(key, undefined, desired), { deadline }, () =>
      storeIsLate(),
    );
    decision = value === undefined ? proposal : decode(value);
    if (group.rank === 0 && proposal.error === null) forget(group, `${step.name}/${step.number - 1}`);
  } catch (cause) {
    const error = undecided(step, proposal, cause);
    onUndecided(error);
    throw error;
  }
  if (decision.error !== null) throw decodeError(decision.error);
}

/** All ranks have read that decision, or they would not have taken part in the next step. */
function forget(group: RankGroup, key: string): void {
  // What is left behind in the store does no harm.
  group.store.delete(key).catch(() => undefined);
}

function storeIsLate(): WeftlineError {
  const message = `The store of rank 0 did not answer within ${DECISION_MS} ms beyond the deadline: rank 0 is stopped or cut off`;
  return new WeftlineError('WL_TIMEOUT', message, { details: { missing: [0], timeoutMs: DECISION_MS } });
}

async function whyNot<Facts>(
  group: RankGroup,
  { key, facts, ready, compare }: CutOver<Facts> & { readonly key: string },
  wait: CallWait,
): Promise<EncodedError | null> {
  const ending = new AbortController();
  const refused = new AbortController();
  const signalOf = (own: AbortController): AbortSignal =>
    wait.signal === undefined ? own.signal : AbortSignal.any([own.signal, wait.signal]);
  // Ranks that have given up do not come to the exchange any more, but they have decided.
  const noticed = group.store.get(key, { ...remaining(wait), signal: signalOf(ending) }).then(
    (value) => {
      const { error } = decode(value);
      if (error !== null) refused.abort(decodeError(error));
    },
    () => undefined,
  );
  try {
    const signal = signalOf(refused);
    const work = (): Promise<void> => ready(signal);
    const outcomes = await shareOutcome(group, { name: key, facts, work }, { ...wait, signal });
    if (outcomes.failure !== undefined) throw outcomes.failure;
    compare(outcomes.facts);
    return null;
  } catch (error) {
    return encodeFailure(await group.firstCause(error), group);
  } finally {
    ending.abort();
    await noticed;
  }
}

function decode(value: Uint8Array): Decision {
  return JSON.parse(Buffer.from(value).toString()) as Decision;
}

function undecided(
  { name, number }: Pick<CutOver<unknown>, 'name' | 'number'>,
  { error: reason }: Decision,
  thrown: unknown,
): WeftlineError {
  const cause = asWeftlineError(thrown);
  const why = reason === null ? '' : ` (before that: ${reason.message})`;
  return new WeftlineError(
    cause.code,
    `Cannot learn whether the ranks have cut over (${name}/${number}): ${cause.message}${why}`,
    {
      details: { ...cause.details },
      cause,
    },
  );
}
