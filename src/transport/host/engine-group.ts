// The engines of a transport as one: their rings, what they share, and how they fail and end together.
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import type { Doorbell } from '../../native/readiness.ts';
import type { ArgumentOf, ResultOf } from '../../threads/worker-link.ts';
import type { EngineEnds } from '../io/packet-io-kind.ts';
import type { EngineCommand } from './command-ring.ts';
import type { EngineLink } from './engine-link.ts';
import type { HostCalls, HostEvent } from './host-calls.ts';
import type { SharedRequests } from './shared-requests.ts';

export class EngineGroup {
  readonly requests: SharedRequests;
  /** Links in the order of engines. */
  readonly links: readonly EngineLink[];
  /** Descriptors through which the engines wake each other. */
  readonly #bells: readonly Doorbell[];
  #failure: WeftlineError | undefined;

  constructor(requests: SharedRequests, links: readonly EngineLink[], bells: readonly Doorbell[] = []) {
    this.requests = requests;
    this.links = links;
    this.#bells = bells;
  }

  /** Hears of all engines; the failure is called once. */
  listen(onEvent: (event: HostEvent, engine: number) => void, onFailure: (error: WeftlineError) => void): void {
    for (const [engine, link] of this.links.entries()) {
      link.onEvent = (event) => onEvent(event, engine);
      link.onFailure = (error) => {
        if (this.#failure !== undefined) return;
        this.#failure = error;
        onFailure(error);
      };
    }
  }

  /** Why an engine is gone, and with it the transport; undefined while all run. */
  get failure(): WeftlineError | undefined {
    return this.#failure ?? (this.links[0] as EngineLink).failure;
  }

  /** Hot path. False if the only engine works within calls of the user's thread. */
  get hasThreads(): boolean {
    return (this.links[0] as EngineLink).hasThread;
  }

  /** True if an engine has failed of which nothing has been heard yet. */
  get hasCrashed(): boolean {
    return this.links.some(({ ring }) => ring.hasCrashed);
  }

  /** Hot path. True if each of the engines, given as bits, takes another command. */
  haveRoom(engines: number): boolean {
    for (let engine = 0; engines >> engine !== 0; engine++) {
      if (((engines >> engine) & 1) === 1 && !(this.links[engine] as EngineLink).ring.hasRoom) return false;
    }
    return true;
  }

  /** Hot path. Hands a command to an engine, which must have room for it. */
  put(engine: number, command: EngineCommand): void {
    const link = this.links[engine] as EngineLink;
    link.ring.put(command);
    link.nudge();
  }

  call<Name extends keyof HostCalls>(
    engine: number,
    name: Name,
    ...argument: ArgumentOf<HostCalls, Name>
  ): Promise<ResultOf<HostCalls, Name>> {
    return (this.links[engine] as EngineLink).call(name, ...argument);
  }

  /**
   * Calls every engine, also after one has failed, and waits for all. Returns what they answer, by engine. Fails with the
   * failure of the only engine that failed, or with one that names all of them.
   */
  async callAll<Name extends keyof HostCalls>(
    name: Name,
    ...argument: ArgumentOf<HostCalls, Name>
  ): Promise<ResultOf<HostCalls, Name>[]> {
    const ends = await Promise.allSettled(this.links.map((link) => link.call(name, ...argument)));
    const failures = ends.flatMap((end, engine) =>
      end.status === 'rejected' ? [{ engine, error: asWeftlineError(end.reason) }] : [],
    );
    const [first] = failures;
    if (first === undefined) return ends.flatMap((end) => (end.status === 'fulfilled' ? [end.value] : []));
    if (failures.length === 1) throw first.error;
    const texts = failures.map(({ engine, error }) => `engine ${engine}: ${error.message}`);
    throw new WeftlineError(
      first.error.code,
      `${failures.length} of ${ends.length} engines failed: ${texts.join('; ')}`,
      { cause: first.error, details: { engines: failures.map(({ engine }) => engine) } },
    );
  }

  readEvents(): void {
    for (const link of this.links) link.readEvents();
  }

  progress(milliseconds: number): void {
    for (const link of this.links) link.progress(milliseconds);
  }

  wait(seen: number, milliseconds: number): Promise<void> {
    return (this.links[0] as EngineLink).wait(seen, milliseconds);
  }

  waitBlocking(seen: number, milliseconds: number, areFew: boolean): void {
    (this.links[0] as EngineLink).waitBlocking(seen, milliseconds, areFew);
    if (this.hasCrashed) this.readEvents();
  }

  async close(): Promise<void> {
    const ends = await Promise.allSettled(this.links.map((link) => link.close()));
    // No engine is left that could ring them.
    for (const bell of this.#bells) bell[Symbol.dispose]();
    for (const end of ends) if (end.status === 'rejected') throw end.reason;
  }
}

/** The maker of ends of paths that an engine of the group has on its thread. */
export function engineEnds(group: EngineGroup, engine: number): EngineEnds {
  return {
    open: (plan) => group.call(engine, 'openEnds', plan),
    connect: (join) => group.call(engine, 'connectEnds', join),
    probe: (probe) => group.call(engine, 'probeEnds', probe),
    probed: (probe) => group.call(engine, 'probedEnds', probe),
    close: (ends) => group.call(engine, 'closeEnds', ends),
  };
}
