// How the launchers of a job's nodes know of each other: a failure on one node ends all of them, none ends before the rest.
import { constants } from 'node:os';
import { Deadline, type WaitOptions } from '../core/deadline.ts';
import { asWeftlineError, blamedRanks, WeftlineError } from '../core/errors.ts';
import { printable } from '../core/quote.ts';
import { credentialsOf } from '../meeting/credentials.ts';
import type { Settings } from '../settings/settings.ts';
import type { RankFailure } from './first-failure.ts';
import { decodeJson, encodeJson, LinkedStore } from './store.ts';
import { StoreClient } from './store-client.ts';

interface NodeLinkOptions {
  readonly host: string;
  readonly port: number;
  readonly nodeRank: number;
  readonly nodeCount: number;
  readonly token: string;
  readonly settings: Settings;
  /** Ends every wait of the link, with its reason. */
  readonly signal: AbortSignal;
  /** What this launcher says when somebody asks what the job does. Must not fail. */
  readonly answer: () => unknown;
  /** Asked once for each node whose launcher is lost; without it, such a loss is the end. */
  readonly goesOnWithout?: (node: number) => Promise<boolean>;
}

/** What the launcher of one node tells the others of a signal: to pass it on, or to kill. */
export const signalSteps = ['pass', 'kill'] as const;
export type SignalStep = (typeof signalSteps)[number];

const FAILURE_KEY = 'failure';
const leftOutKey = (rank: number): string => `left out ${rank}`;
/** Longer waits are asked for again. */
const LONG_MS = 2 ** 30;

export class NodeLink {
  readonly #client: StoreClient;
  readonly #store: LinkedStore;
  readonly #signal: AbortSignal;
  readonly #nodeRank: number;
  readonly #nodes: readonly number[];
  readonly #goesOnWithout: ((node: number) => Promise<boolean>) | undefined;
  /** Nodes that are lost, and whether the job goes on without them. */
  readonly #lost = new Map<number, Promise<boolean>>();
  /** Nodes that the job goes on without. */
  readonly #spared = new Set<number>();

  /** Meets the launchers of all nodes. Fails with WL_TIMEOUT naming the nodes that did not come within `timeoutMs`. */
  static async connect(options: NodeLinkOptions): Promise<NodeLink> {
    const { host, port, nodeRank, nodeCount, token, settings, signal, answer } = options;
    const { timeoutMs } = settings;
    const deadline = new Deadline(timeoutMs);
    const client = await StoreClient.connect({
      host,
      port,
      kind: 'node',
      server: 'the launcher of node 0',
      rank: nodeRank,
      size: nodeCount,
      credentials: credentialsOf(token),
      deadline,
      timeoutMs,
      silenceMs: timeoutMs,
      signal,
      answer,
    }).catch((error: unknown) => {
      throw ofTakenNode(error);
    });
    const link = new NodeLink(client, options);
    try {
      await link.#store.barrier('start', { timeoutMs: Math.ceil(deadline.leftMs), signal });
      return link;
    } catch (error) {
      await client.close();
      throw ofNodes(error, timeoutMs);
    }
  }

  private constructor(client: StoreClient, options: NodeLinkOptions) {
    const { settings, signal, nodeRank, nodeCount, goesOnWithout } = options;
    const { timeoutMs, storeMaxValueBytes } = settings;
    this.#nodeRank = nodeRank;
    this.#nodes = Array.from({ length: nodeCount }, (_, node) => node);
    this.#goesOnWithout = goesOnWithout;
    this.#client = client;
    this.#signal = signal;
    this.#store = new LinkedStore(client, { timeoutMs, maxValueBytes: storeMaxValueBytes });
  }

  /** Tells all nodes of a failure; resolves with the first that any node told of. */
  async report(failure: RankFailure): Promise<RankFailure> {
    const { swapped, value } = await this.#store.compareAndSet(FAILURE_KEY, undefined, encodeJson(failure));
    return swapped || value === undefined ? failure : (decodeJson(value) as RankFailure);
  }

  /** Resolves with the first failure that any node tells of. Fails with WL_PEER_LOST when the launcher of a node is gone. */
  async failure(timeoutMs: number = LONG_MS): Promise<RankFailure> {
    return decodeJson(await this.#valueOf(FAILURE_KEY, timeoutMs)) as RankFailure;
  }

  /** The same; undefined if a node is slow to tell. One whose launcher is gone never will. */
  async failureWithin(timeoutMs: number): Promise<RankFailure | undefined> {
    try {
      return await this.failure(timeoutMs);
    } catch (error) {
      if (asWeftlineError(error).code !== 'WL_TIMEOUT') throw error;
      return undefined;
    }
  }

  /** Tells the launchers of all nodes, this one included, of a signal that one of them got. */
  async tellSignal(step: SignalStep, signal: NodeJS.Signals): Promise<void> {
    await this.#store.setJson(`signal ${step}`, signal);
  }

  /** Resolves with the signal once any node tells of this step. */
  async signalOf(step: SignalStep): Promise<NodeJS.Signals> {
    return knownSignal(decodeJson(await this.#valueOf(`signal ${step}`, LONG_MS)));
  }

  /** Tells the launcher of the rank that the others go on without it. */
  async tellLeftOut(rank: number): Promise<void> {
    await this.#store.set(leftOutKey(rank), new Uint8Array());
  }

  /** Resolves when the launcher of node 0, which serves the store, tells that of this rank. */
  async leftOut(rank: number): Promise<void> {
    await this.#valueOf(leftOutKey(rank), LONG_MS);
  }

  /** Counts ranks of this node that have failed; returns how many have on all nodes, those of lost nodes among them. */
  async countFailed(more: number, ranksOfNode: number): Promise<number> {
    let sum = 0;
    for (const node of this.#nodes) {
      const counted = await this.#store.add(`failed ranks of node ${node}`, node === this.#nodeRank ? more : 0);
      sum += this.#lost.has(node) ? ranksOfNode : counted;
    }
    return sum;
  }

  /** Resolves when the ranks of all nodes have ended well, but for nodes that the job goes on without. */
  async allEnded(): Promise<void> {
    if (this.#goesOnWithout === undefined) return this.#longWait((wait) => this.#store.barrier('end', wait), LONG_MS);
    const { left } = await this.#longWait((wait) => this.#store.shrink([], wait), LONG_MS);
    const nodes = left.map(({ rank }) => rank);
    if (!(await this.#canLose(nodes))) throw nodesLost(nodes);
  }

  /** Resolves when the ranks of all nodes have ended well but for helpers, which may still wait for them. */
  async onlyHelpersLeft(): Promise<void> {
    await this.#longWait((wait) => this.#store.barrier('helpers', wait), LONG_MS);
  }

  /** Resolves when the launchers of all nodes know that. */
  async helpersMayEnd(): Promise<void> {
    await this.#longWait((wait) => this.#store.barrier('helpers told', wait), LONG_MS);
  }

  /** Closes the link; no error if the other nodes know how this one ended. */
  close(error?: WeftlineError): Promise<void> {
    return this.#client.close(error);
  }

  /** What a node says under this key. Nodes that are lost meanwhile are not waited for any more, if the job goes on. */
  async #valueOf(key: string, timeoutMs: number): Promise<Uint8Array> {
    for (;;) {
      const from =
        this.#goesOnWithout === undefined ? {} : { from: this.#nodes.filter((node) => !this.#spared.has(node)) };
      try {
        return await this.#longWait((wait) => this.#store.get(key, { ...wait, ...from }), timeoutMs);
      } catch (error) {
        const nodes = lostNodes(error);
        if (nodes.length === 0 || !(await this.#canLose(nodes))) throw error;
      }
    }
  }

  /** True if the job goes on without all of these nodes. */
  async #canLose(nodes: readonly number[]): Promise<boolean> {
    const goesOnWithout = this.#goesOnWithout;
    if (goesOnWithout === undefined) return false;
    const answers = nodes.map((node) => {
      // Counted as lost before the question is asked.
      const answer = this.#lost.get(node) ?? Promise.resolve().then(() => goesOnWithout(node));
      this.#lost.set(node, answer);
      return answer.then((spared) => spared && this.#spared.add(node) !== undefined);
    });
    return (await Promise.all(answers)).every(Boolean);
  }

  async #longWait<T>(wait: (options: WaitOptions) => Promise<T>, timeoutMs: number): Promise<T> {
    const signal = this.#signal;
    for (;;) {
      try {
        return await wait({ timeoutMs, signal });
      } catch (error) {
        signal.throwIfAborted();
        const known = asWeftlineError(error);
        if (known.code !== 'WL_TIMEOUT' || timeoutMs < LONG_MS) throw ofNodes(known, timeoutMs);
      }
    }
  }
}

/** Other launchers hold the token of the job, and may still be of another version. */
function knownSignal(told: unknown): NodeJS.Signals {
  return typeof told === 'string' && told in constants.signals ? (told as NodeJS.Signals) : 'SIGTERM';
}

/** The store speaks of ranks; the caller is a launcher, and so is the one that came before it. */
function ofTakenNode(error: unknown): unknown {
  if (!(error instanceof WeftlineError) || error.code !== 'WL_RANK_TAKEN') return error;
  const { rank, pid, host, left } = error.details;
  const state = left === true ? 'was used and left by' : 'is used by';
  const message = `Node ${Number(rank)} of this job ${state} the launcher with process id ${Number(pid)} on ${printable(String(host))}: give each launcher its own --node-rank`;
  return new WeftlineError(error.code, message, { details: { node: rank, pid, host, left } });
}

/** Nodes whose launcher is gone, as an error of ofNodes() says; none if it is the store that is lost. */
function lostNodes(error: unknown): readonly number[] {
  if (!(error instanceof WeftlineError) || error.code === 'WL_TIMEOUT') return [];
  const { nodes } = error.details;
  return Array.isArray(nodes) ? (nodes as readonly number[]) : [];
}

function nodesLost(nodes: readonly number[]): WeftlineError {
  const message = `The launcher of node ${nodes.join(', ')} was lost: its connection broke before the ranks had ended`;
  return new WeftlineError('WL_PEER_LOST', message, { details: { nodes } });
}

/** The store counts members; here they are launchers of nodes, not ranks. */
function ofNodes(error: unknown, timeoutMs: number): unknown {
  const blamed = blamedRanks(error);
  const nodes = blamed.join(', ');
  if (!(error instanceof WeftlineError) || nodes === '') return error;
  const { code } = error;
  const details = { nodes: blamed, timeoutMs };
  if (code === 'WL_TIMEOUT') {
    const message = `No launcher came for node ${nodes} within ${timeoutMs} ms: start weftline run on each node, with its own --node-rank and the same --nnodes, --master and WEFTLINE_TOKEN`;
    return new WeftlineError(code, message, { details });
  }
  if (code !== 'WL_PEER_FAILED') return nodesLost(blamed);
  return new WeftlineError(code, `The launcher of node ${nodes} was stopped before the ranks had ended`, { details });
}
