// The rings of this thread that peers send pieces into: made when a peer says hello, gone when it leaves or misbehaves.
import { MAX_STAGING_CHANNELS, MAX_STAGING_SLOTS } from './wire-layout.ts';
import { Deadline } from '../../core/deadline.ts';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import { log } from '../../core/log.ts';
import type { Backend, BackendRegion } from '../backend.ts';
import type { DeviceTable } from './device-table.ts';
import type { CopyRun } from './device-copies.ts';
import type { Greeter } from './greeter.ts';
import type { Hello } from './greeting.ts';
import type { InnerLinks, LinkUse } from './inner-links.ts';
import type { MemoryTable } from './memory-table.ts';
import { ReceiveSession } from './receive-session.ts';
import { PieceChannels } from './piece-channels.ts';
import { endRing } from './ring-end.ts';
import { RingMemory, ringBytesOf } from './ring-memory.ts';

/** Of one peer: one for its host memory and one for its GPUs, and those that are just ending. */
const MAX_SESSIONS_OF_PEER = 8;
/** Of one peer: greetings and ends of sessions that are under way. */
const MAX_GREETINGS_OF_PEER: number = 4 * MAX_SESSIONS_OF_PEER;
const MAX_PIECE_BYTES: number = 16 << 20;
const MIN_PIECE_BYTES = 4096;
/** The sender says how long it waits; a timer takes no more than this. */
const MAX_GREETING_MS = 86_400_000;

interface ReceiveSessionsOptions {
  readonly backend: Backend;
  readonly links: InnerLinks;
  readonly greeter: Greeter;
  readonly memory: MemoryTable;
  readonly devices: DeviceTable;
  readonly run: CopyRun;
  /** Resolves when no device touches a ring any more. */
  readonly fence: () => Promise<void>;
}

interface Guest {
  readonly peer: string;
  /** The sender's number. */
  readonly lane: number;
  readonly ring: RingMemory;
  readonly use: LinkUse;
  readonly local: BackendRegion;
  readonly session: ReceiveSession;
}

/** A sender that waits for its welcome. */
interface Arrival {
  readonly peer: string;
  readonly lane: number;
  /** It waits no more. */
  left: WeftlineError | undefined;
}

export class ReceiveSessions {
  readonly #options: ReceiveSessionsOptions;
  readonly #guests = new Set<Guest>();
  readonly #arrivals = new Set<Arrival>();
  /** By peer: sessions that are being made or ended. */
  readonly #changing = new Map<string, number>();
  readonly #ending = new Set<Promise<void>>();

  constructor(options: ReceiveSessionsOptions) {
    this.#options = options;
  }

  /** Goes on. True if something moved. */
  step(): boolean {
    let hasMoved = false;
    for (const guest of this.#guests) {
      const { error } = guest.use.link;
      if (error !== undefined) {
        this.#end(guest, error, false);
        continue;
      }
      try {
        if (guest.session.step()) hasMoved = true;
      } catch (thrown) {
        this.#end(guest, asWeftlineError(thrown), true);
      }
    }
    return hasMoved;
  }

  /** A peer wants to send pieces. Never throws. */
  async receive(peer: string, hello: Hello): Promise<void> {
    const arrival: Arrival = { peer, lane: hello.lane, left: undefined };
    this.#arrivals.add(arrival);
    this.#count(peer, 1);
    try {
      await this.#receive(arrival, hello);
    } catch (error) {
      log('agent', 'warn', `no pieces from ${peer}: ${asWeftlineError(error).message}`);
    } finally {
      this.#arrivals.delete(arrival);
      this.#count(peer, -1);
    }
  }

  /** The peer's lane of that number is closed. */
  leave(peer: string, lane: number, why: WeftlineError): void {
    for (const guest of this.#guests) if (guest.peer === peer && guest.lane === lane) this.#end(guest, why, false);
    for (const arrival of this.#arrivals) if (arrival.peer === peer && arrival.lane === lane) arrival.left = why;
  }

  async close(error: WeftlineError): Promise<void> {
    for (const arrival of this.#arrivals) arrival.left = error;
    for (const guest of this.#guests) this.#end(guest, error, true);
    await Promise.allSettled(this.#ending);
  }

  async #receive(arrival: Arrival, hello: Hello): Promise<void> {
    const { peer } = arrival;
    // Before it costs a connection; such a peer gets no answer.
    if ((this.#changing.get(peer) ?? 0) > MAX_GREETINGS_OF_PEER)
      throw new WeftlineError('WL_CAPACITY', 'It says hello too often');
    const { backend, links, greeter } = this.#options;
    const { lane, incarnation, host, process, connectionInfo } = hello;
    const deadline = new Deadline(Math.min(hello.timeoutMs, MAX_GREETING_MS));
    const { timeoutMs } = deadline;
    const use = await links.use({ name: peer, incarnation, host, process, connectionInfo }, { timeoutMs, deadline });
    let ring: RingMemory | undefined;
    let local: BackendRegion | undefined;
    try {
      this.#check(peer, hello);
      const { link } = use;
      const { slots, pieceBytes, channels: count } = hello;
      ring = new RingMemory({ slots, pieceBytes }, this.#options.devices.makeStorage);
      local = await backend.register(ring.memory);
      const remote = link.importRegion(hello.ring, { kind: 'host', bytes: ringBytesOf(ring.shape) });
      if (arrival.left !== undefined) throw arrival.left;
      const { memory, run } = this.#options;
      const channels = PieceChannels.open(link, count, ring, remote);
      const session = new ReceiveSession({ peer, memory, run, ring, local, remote, channels });
      this.#guests.add({ peer, lane, ring, use, local, session });
      await greeter.welcome(link, lane, local.info, deadline);
    } catch (error) {
      const known = [...this.#guests].find((guest) => guest.ring === ring);
      if (known !== undefined) this.#end(known, asWeftlineError(error), true);
      else {
        greeter.sayGoodbye(use.link, { lane, from: 'receiver', error });
        await local?.release().catch(() => {});
        ring?.free();
        await use.giveBack().catch(() => {});
      }
      throw error;
    }
  }

  #check(peer: string, { slots, pieceBytes, channels }: Hello): void {
    const isShape = slots >= 1 && slots <= MAX_STAGING_SLOTS && pieceBytes >= MIN_PIECE_BYTES;
    const isSpread = channels >= 1 && channels <= Math.min(slots, MAX_STAGING_CHANNELS);
    if (!isShape || !isSpread || pieceBytes > MAX_PIECE_BYTES) {
      throw new WeftlineError(
        'WL_PROTOCOL',
        `${peer} asked for a ring of ${slots} pieces of ${pieceBytes} bytes on ${channels} channels`,
      );
    }
    const open = [...this.#guests].filter((guest) => guest.peer === peer).length + (this.#changing.get(peer) ?? 0);
    if (open <= MAX_SESSIONS_OF_PEER) return;
    throw new WeftlineError('WL_CAPACITY', `A peer has at most ${MAX_SESSIONS_OF_PEER} rings: ${peer} wants another`);
  }

  #end(guest: Guest, why: WeftlineError, isOwn: boolean): void {
    if (!this.#guests.delete(guest)) return;
    const { peer, lane, use } = guest;
    if (isOwn) this.#options.greeter.sayGoodbye(use.link, { lane, from: 'receiver', error: why });
    this.#count(peer, 1);
    const ending = this.#free(guest);
    this.#ending.add(ending);
    void ending.finally(() => {
      this.#count(peer, -1);
      this.#ending.delete(ending);
    });
  }

  /** Never throws. */
  async #free({ peer, use, local, ring, session }: Guest): Promise<void> {
    try {
      await endRing({ fence: this.#options.fence, session, local, ring, uses: [use] });
    } catch (error) {
      log('agent', 'warn', `a ring for pieces of ${peer} was not freed: ${asWeftlineError(error).message}`);
    }
  }

  #count(peer: string, change: number): void {
    const count = (this.#changing.get(peer) ?? 0) + change;
    if (count === 0) this.#changing.delete(peer);
    else this.#changing.set(peer, count);
  }
}
