// A simulated host: its engines, memory that all of them know, and its requests, whose parts end on several engines.
import { WeftlineError } from '../../core/errors.ts';
import type { Engine } from '../../transport/engine/engine.ts';
import type { Region } from '../../transport/engine/region.ts';
import {
  type EngineHandle,
  type RegionOptions,
  requestStatus,
  type RequestStatus,
  type TransportConnection,
} from '../../transport/engine/transport-engine.ts';
import { GATES } from '../../abi/transport-command.ts';
import { GatePool, NONE } from '../../transport/lanes/gates.ts';
import { HeldFences, type HeldOperation } from '../../transport/lanes/held-fences.ts';
import type { SimulatedIo } from './simulated-io.ts';

export interface SimulatedEngine {
  /** Among those of all hosts. */
  readonly node: number;
  readonly engine: Engine;
  readonly io: SimulatedIo;
}

/** A signal or flush that waits on its engine. */
interface HeldFence extends HeldOperation {
  readonly post: () => void;
}

/** The end of a request; `error` if it failed. */
export interface RequestEnd {
  readonly request: number;
  readonly error: WeftlineError | undefined;
  /** What a receive brought. */
  readonly bytes: number;
}

interface Part {
  readonly lane: number;
  readonly connection: TransportConnection;
  readonly handle: EngineHandle;
}

/** A part that is to be posted. */
interface NewPart {
  readonly lane: number;
  /** That it holds shut until it ends, or NONE. */
  readonly gate: number;
  readonly connection: TransportConnection;
  readonly post: () => EngineHandle;
}

interface PendingRequest {
  readonly parts: Part[];
  left: number;
  bytes: number;
  error: WeftlineError | undefined;
  /** Which it waits for, and frees when it ends; NONE for none. */
  readonly awaitedGate: number;
}

export class SimulatedHost {
  readonly index: number;
  readonly engines: readonly SimulatedEngine[];
  /** Of writes that later signals and flushes wait for. */
  readonly gates = new GatePool(new Int32Array(GATES));
  /** By engine. */
  readonly held: readonly HeldFences<HeldFence>[];
  /** Set before requests are posted. */
  onEnd: (end: RequestEnd) => void = () => {};
  onConnectionEnd: (connection: TransportConnection, error: WeftlineError) => void = () => {};
  /** Called when an engine of the host has taken packets in and sent its answers. */
  afterRound: () => void = () => {};
  alive = true;
  readonly #later: (action: () => void) => void;
  readonly #requests = new Map<number, PendingRequest>();
  /** By engine: the request of a handle, and the gate that its part holds shut. */
  readonly #owners: readonly Map<EngineHandle, readonly [request: number, gate: number]>[];
  /** By the region of the first engine: those of all of them. */
  readonly #regions = new Map<Region, readonly Region[]>();
  /** Why connections that this side ended have ended, in place of what their engines say. */
  readonly #reasons = new Map<TransportConnection, WeftlineError>();
  #next = 1;

  /** `later` calls an action when the present event is over. */
  constructor(index: number, engines: readonly SimulatedEngine[], later: (action: () => void) => void) {
    this.index = index;
    this.engines = engines;
    this.#later = later;
    this.held = engines.map(() => new HeldFences<HeldFence>(this.gates, ({ post }) => post()));
    this.#owners = engines.map(() => new Map());
  }

  /** The same memory at all engines, under one name. */
  register(options: RegionOptions): Region {
    const [first, ...others] = this.engines as readonly [SimulatedEngine, ...SimulatedEngine[]];
    const region = first.engine.register(options);
    const { id, key } = region;
    const more = others.map(({ engine }) => engine.register({ ...options, name: { id, key } }));
    this.#regions.set(region, [region, ...more]);
    return region;
  }

  regionOf(region: Region, lane: number): Region {
    return this.#regions.get(region)?.[lane] ?? region;
  }

  /** A request of so many parts. `awaitedGate`: that no other request uses, or NONE. */
  open(parts: number, awaitedGate: number): number {
    const request = this.#next;
    this.#next += 1;
    this.#requests.set(request, { parts: [], left: parts, bytes: 0, error: undefined, awaitedGate });
    return request;
  }

  /** Posts a part to its engine. What that refuses fails when the present event is over. */
  put(request: number, { lane, gate, connection, post }: NewPart): void {
    const pending = this.#requests.get(request);
    if (pending === undefined) return;
    try {
      const handle = post();
      pending.parts.push({ lane, connection, handle });
      this.#owners[lane]?.set(handle, [request, gate]);
    } catch (error) {
      if (!(error instanceof WeftlineError)) throw error;
      this.#later(() => this.#partEnded(request, gate, this.#reasons.get(connection) ?? error, 0));
    }
  }

  /** An engine says that a request of its own has ended. */
  ended(lane: number, handle: EngineHandle, status: RequestStatus): void {
    const owners = this.#owners[lane]!;
    const owner = owners.get(handle);
    if (owner === undefined) return;
    owners.delete(handle);
    const [request, gate] = owner;
    const { engine } = this.engines[lane]!;
    const part = this.#requests.get(request)?.parts.find((one) => one.handle === handle && one.lane === lane);
    const reason = part && this.#reasons.get(part.connection);
    const error = status === requestStatus.failed ? (reason ?? engine.requestError(handle)) : undefined;
    const bytes = status === requestStatus.failed ? 0 : engine.receivedBytes(handle);
    this.#partEnded(request, gate, error, bytes);
  }

  /** Ends a part that no engine has, such as a signal that was still held back. */
  failHeld(request: number, error: WeftlineError): void {
    this.#partEnded(request, NONE, error, 0);
  }

  /** Withdraws the parts of a request that are pending. False if there are none. */
  cancel(request: number): boolean {
    for (const held of this.held) {
      if (!held.cancel(request)) continue;
      this.failHeld(request, new WeftlineError('WL_CLOSED', 'A signal or flush was cancelled'));
      return true;
    }
    const parts = this.#requests.get(request)?.parts ?? [];
    return parts.map(({ connection, handle }) => connection.cancel(handle)).includes(true);
  }

  /** What requests of these ends fail with from now on. */
  noteReason(connections: readonly TransportConnection[], reason: WeftlineError): void {
    for (const connection of connections) if (!this.#reasons.has(connection)) this.#reasons.set(connection, reason);
  }

  #partEnded(request: number, gate: number, error: WeftlineError | undefined, bytes: number): void {
    if (gate !== NONE) this.#leave(gate);
    const pending = this.#requests.get(request);
    if (pending === undefined) return;
    pending.error ??= error;
    pending.bytes += bytes;
    pending.left -= 1;
    if (pending.left > 0) return;
    this.#requests.delete(request);
    if (pending.awaitedGate !== NONE) this.gates.free(pending.awaitedGate);
    this.onEnd({ request, error: pending.error, bytes: pending.bytes });
  }

  /** The engine that waits for the gate looks at it when it gets to it. */
  #leave(gate: number): void {
    const waiter = this.gates.leave(gate);
    if (waiter !== NONE) this.#later(() => this.held[waiter]?.release());
  }
}
