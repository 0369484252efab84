// The engines of a simulated rank as its transport sees them: those that ship, run by the simulation in place of threads.
import { WeftlineError } from '../../../core/errors.ts';
import type { Doorbell } from '../../../native/readiness.ts';
import type { Settings } from '../../../settings/settings.ts';
import type { WakeWord } from '../../../threads/wake-word.ts';
import { type ArgumentOf, findCall, type ResultOf } from '../../../threads/worker-link.ts';
import type { Engine } from '../../../transport/engine/engine.ts';
import type { TransportEngine } from '../../../transport/engine/transport-engine.ts';
import { CommandRing, EngineBells } from '../../../transport/host/command-ring.ts';
import { EngineGroup, type EngineLink } from '../../../transport/host/engine-group.ts';
import { EngineHost, type HostCalls, type HostEvent } from '../../../transport/host/engine-host.ts';
import { SharedRequests } from '../../../transport/host/shared-requests.ts';
import type { PacketLoop, PathEndpoint } from '../../../transport/io/packet-io-kind.ts';
import type { PeerEnd, SimulatedIo } from '../simulated-host.ts';
import type { EnginePlace, Simulation } from '../simulation.ts';

/** What the engines need of the simulated job around them. */
interface EngineSurroundings {
  readonly simulation: () => Simulation;
  /** The other end of a connection, as seen from a host. */
  readonly otherEnd: (port: number, host: number) => PeerEnd;
  /** The rank's code may have something to do. */
  readonly noteActivity: () => void;
}

/** The simulation polls and sleeps in its place. */
class SimulatedLoop implements PacketLoop {
  readonly engine: TransportEngine;
  readonly refused: number[] = [];
  readonly refusal = 'its ports are closed';
  readonly failures = {};
  readonly isIdle = true;
  readonly #host: number;
  readonly #io: SimulatedIo;
  readonly #around: EngineSurroundings;

  constructor({ host, io }: EnginePlace, engine: TransportEngine, around: EngineSurroundings) {
    this.engine = engine;
    this.#host = host;
    this.#io = io;
    this.#around = around;
  }

  get doorbell(): Doorbell {
    throw new WeftlineError('WL_INTERNAL', 'A simulated engine has no thread that could be woken');
  }

  addPeer(peer: number, { ends: [port] }: PathEndpoint): void {
    this.#io.join(peer, this.#around.otherEnd(port!, this.#host));
  }

  removePeer(peer: number): void {
    this.#io.part(peer);
  }

  step(): boolean {
    return false;
  }

  sleep(): void {}

  touch(): void {
    const { now } = this.#around.simulation();
    this.#io.now = now;
    this.engine.onTimer(now);
  }

  [Symbol.dispose](): void {}
}

/** The user's side of an engine. Calls are carried out at once, commands when the simulation lets the engine work. */
class HostedLink implements EngineLink {
  readonly hasThread = true;
  readonly ring: CommandRing;
  failure: WeftlineError | undefined;
  onEvent: (event: HostEvent) => void = () => {};
  onFailure: (error: WeftlineError) => void = () => {};
  readonly #host: EngineHost;
  readonly #wake: () => void;

  constructor(ring: CommandRing, host: EngineHost, wake: () => void) {
    this.ring = ring;
    this.#host = host;
    this.#wake = wake;
  }

  async call<Name extends keyof HostCalls>(
    name: Name,
    ...[argument]: ArgumentOf<HostCalls, Name>
  ): Promise<ResultOf<HostCalls, Name>> {
    if (this.failure !== undefined) throw this.failure;
    this.#host.beginCall();
    this.#wake();
    return findCall(this.#host.calls, name)(argument, new AbortController().signal) as ResultOf<HostCalls, Name>;
  }

  nudge(): void {
    this.#wake();
  }

  readEvents(): void {}

  progress(): void {}

  wait(): Promise<void> {
    throw new WeftlineError('WL_INTERNAL', 'Requests of simulated ranks are waited for by their agents');
  }

  waitBlocking(): void {
    throw new WeftlineError('WL_INTERNAL', 'A simulated rank cannot block: its engines would stand still');
  }

  async close(): Promise<void> {
    if (this.failure !== undefined) return;
    await this.call('stop');
    this.failure = new WeftlineError('WL_CLOSED', 'The transport was closed');
  }
}

/** The engines of one rank. */
export class HostedEngines {
  readonly #settings: Settings;
  readonly #around: EngineSurroundings;
  readonly #requests: SharedRequests;
  readonly #rings: readonly CommandRing[];
  readonly #hosts: EngineHost[] = [];
  readonly #links: HostedLink[] = [];

  constructor(settings: Settings, wake: WakeWord, around: EngineSurroundings) {
    this.#settings = settings;
    this.#requests = new SharedRequests(wake);
    this.#around = around;
    this.#rings = Array.from({ length: settings.transportEngines }, () => new CommandRing());
  }

  /** Makes the host's next engine. */
  open(place: EnginePlace): Engine {
    const { host: at, lane, seed, io } = place;
    const { noteActivity, simulation } = this.#around;
    const rings = this.#rings.map(({ buffer }) => new CommandRing(buffer));
    const made: { engine?: Engine } = {};
    const host = new EngineHost({
      settings: this.#settings,
      engines: rings.length,
      engine: lane,
      requests: new SharedRequests(this.#requests.news, this.#requests.buffer),
      ring: rings[lane]!,
      bells: new EngineBells(rings),
      onEvent: (event) => {
        noteActivity();
        this.#links[lane]!.onEvent(event);
      },
      seed,
      io: {
        openLoop: ({ engine }) => {
          made.engine = engine(io) as Engine;
          return new SimulatedLoop(place, made.engine, this.#around);
        },
      },
    });
    this.#hosts.push(host);
    const wake = (): void => {
      noteActivity();
      simulation().wakeEngine(at, lane);
    };
    this.#links.push(new HostedLink(this.#rings[lane]!, host, wake));
    return made.engine!;
  }

  /** All of them, when they have been opened. */
  group(): EngineGroup {
    return new EngineGroup(this.#requests, this.#links);
  }

  /** Carries out what the rank has posted to an engine. */
  takeCommands(lane: number): void {
    this.#hosts[lane]!.takeCommands();
  }

  /** The engine has done what was due. */
  endRound(lane: number): void {
    this.#hosts[lane]!.step();
  }
}
