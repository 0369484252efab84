// A lane to one peer with all that it holds: links, ring, session, messages. Made when it is first needed.
import { Deadline } from '../../core/deadline.ts';
import { asWeftlineError, type WeftlineError } from '../../core/errors.ts';
import type { Backend, BackendLink, BackendRegion, BackendRemoteRegion } from '../backend.ts';
import type { Greeter } from './greeter.ts';
import type { InnerLinks, LinkUse } from './inner-links.ts';
import { Lane } from './lane.ts';
import { MessageQueue } from './message-queue.ts';
import { channelsTo, PieceChannels } from './piece-channels.ts';
import { type MakeStorage, RingMemory, type RingShape } from './ring-memory.ts';
import { endRing } from './ring-end.ts';
import { SendSession } from './send-session.ts';
import { StagedMessages } from './staged-messages.ts';
import type { LaneOptions } from './staging-messages.ts';

interface SendLaneParts {
  readonly number: number;
  readonly backend: Backend;
  readonly links: InnerLinks;
  readonly greeter: Greeter;
  readonly shape: RingShape;
  readonly makeStorage: MakeStorage;
  readonly signal: AbortSignal;
}

export class SendLane {
  readonly number: number;
  readonly peer: string;
  readonly lane: Lane;
  readonly messages: MessageQueue;
  /** To the peer's agent, for messages and its host memory. */
  readonly link: BackendLink;
  readonly ring: RingMemory;
  /** The ring. */
  readonly local: BackendRegion;
  /** To the peer's staging thread; undefined of a lane to host memory. */
  readonly session: SendSession | undefined;
  readonly #uses: readonly LinkUse[];
  readonly #greeter: Greeter;
  #closing: Promise<void> | undefined;

  static async open(options: LaneOptions, parts: SendLaneParts): Promise<SendLane> {
    const { peer, connectionInfo, timeoutMs } = options;
    const deadline = new Deadline(timeoutMs);
    const { backend, links, greeter, signal } = parts;
    const uses: LinkUse[] = [];
    const ring = new RingMemory(parts.shape, parts.makeStorage);
    let local: BackendRegion | undefined;
    try {
      uses.push(await links.use(peer, { timeoutMs, deadline, signal }));
      if (connectionInfo !== undefined) {
        uses.push(await links.use({ ...peer, connectionInfo }, { timeoutMs, deadline, signal }));
      }
      local = await backend.register(ring.memory);
      const session =
        connectionInfo === undefined
          ? undefined
          : await meet({ peer: peer.name, ring, local, link: (uses[1] as LinkUse).link, deadline }, parts);
      return new SendLane(options, { number: parts.number, uses, greeter, ring, local, session });
    } catch (error) {
      // The peer may have made a ring for it.
      const link = uses[1]?.link;
      if (link !== undefined) greeter.sayGoodbye(link, { lane: parts.number, from: 'sender', error });
      await local?.release().catch(() => {});
      ring.free();
      await Promise.allSettled(uses.map((use) => use.giveBack()));
      throw error;
    }
  }

  private constructor(
    { peer, messages }: LaneOptions,
    parts: Pick<SendLane, 'number' | 'ring' | 'local' | 'session'> & {
      readonly uses: readonly LinkUse[];
      readonly greeter: Greeter;
    },
  ) {
    const { number, uses, greeter, ring, local, session } = parts;
    this.number = number;
    this.peer = peer.name;
    this.#uses = uses;
    this.#greeter = greeter;
    this.ring = ring;
    this.local = local;
    this.session = session;
    this.link = (uses[0] as LinkUse).link;
    this.lane = new Lane(ring, session);
    this.messages = new MessageQueue(new StagedMessages(messages), this.link);
  }

  /** Why nothing goes on it any more. */
  get error(): WeftlineError | undefined {
    for (const { link } of this.#uses) if (link.error !== undefined) return link.error;
    return this.session?.error;
  }

  /** Goes on. True if something moved. */
  step(): boolean {
    const { error } = this;
    if (error !== undefined && this.lane.error === undefined) this.lane.fail(error);
    if (this.messages.isStuck) this.messages.send();
    try {
      return this.lane.step();
    } catch (thrown) {
      // What no job can be blamed for is the end of the way.
      this.lane.fail(this.error ?? asWeftlineError(thrown));
      return true;
    }
  }

  /** Host memory of the peer as its agent's backend published it. */
  importHost(info: Uint8Array, bytes: number): BackendRemoteRegion {
    return this.link.importRegion(info, { kind: 'host', bytes });
  }

  /** `fence` tells when no device touches the ring any more. */
  close(error: WeftlineError, fence: () => Promise<void>): Promise<void> {
    this.#closing ??= this.#close(error, fence);
    return this.#closing;
  }

  async #close(error: WeftlineError, fence: () => Promise<void>): Promise<void> {
    this.lane.fail(error);
    const link = this.#uses[1]?.link;
    if (link !== undefined) this.#greeter.sayGoodbye(link, { lane: this.number, from: 'sender', error });
    this.#greeter.forget(this.number);
    const { session, local, ring } = this;
    await endRing({ fence, session, local, ring, uses: this.#uses });
  }
}

interface Meeting {
  readonly peer: string;
  readonly ring: RingMemory;
  readonly local: BackendRegion;
  readonly link: BackendLink;
  readonly deadline: Deadline;
}

async function meet(
  { peer, ring, local, link, deadline }: Meeting,
  { number, greeter, signal }: SendLaneParts,
): Promise<SendSession> {
  const { shape } = ring;
  const count = channelsTo(link, shape.slots);
  const hello = { peer, lane: number, ring: local.info, shape, channels: count };
  const info = await greeter.meet({ ...hello, link, deadline, signal });
  try {
    const remote = link.importRegion(info, { kind: 'host', bytes: ring.memory.bytes });
    return new SendSession({ peer, ring, local, remote, channels: PieceChannels.open(link, count, ring, remote) });
  } catch (error) {
    throw asWeftlineError(error);
  }
}
