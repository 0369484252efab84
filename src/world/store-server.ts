// The TCP server of the rendezvous store: lets ranks in, tells them who left.
import { encodeError } from '../core/errors.ts';
import type { ControlChannel } from '../meeting/control-channel.ts';
import type { Credential, Credentials } from '../meeting/credentials.ts';
import { receiveHello } from '../meeting/hello.ts';
import { type ListenTarget, MeetingListener } from '../meeting/listener.ts';
import type { Settings } from '../settings/settings.ts';
import type { Departure } from './membership.ts';
import { StoreConnection } from './store-connection.ts';
import { StoreCore } from './store-core.ts';
import { type MemberKind, readRank, storeHello } from './store-hello.ts';

export interface StoreServerOptions {
  readonly listen: ListenTarget;
  readonly size: number;
  /** Launchers that meet here too, among themselves; 0 by default. */
  readonly nodeCount?: number;
  /** Fixed for the job: secrets of the job follow from it. */
  readonly credential: Credential;
  readonly jobId: string;
  readonly maxValueBytes: number;
  readonly settings: Pick<Settings, 'maxStrangers' | 'greetingMs' | 'timeoutMs'>;
}

export class StoreServer {
  readonly #options: StoreServerOptions;
  readonly #credentials: Credentials;
  readonly #groups: Readonly<Record<MemberKind, Group>>;
  #listener: MeetingListener | undefined;
  #whenEmpty: (() => void) | undefined;

  /** Fails as MeetingListener.open does. */
  static async listen(options: StoreServerOptions): Promise<StoreServer> {
    const store = new StoreServer(options);
    const { settings, size } = options;
    store.#listener = await MeetingListener.open({
      target: options.listen,
      credentials: store.#credentials,
      // All ranks may come at once.
      settings: { ...settings, maxStrangers: Math.max(settings.maxStrangers, 2 * size) },
      silenceMs: settings.timeoutMs,
      serve: (channel) => store.#welcome(channel),
    });
    return store;
  }

  private constructor(options: StoreServerOptions) {
    const { credential } = options;
    this.#options = options;
    this.#credentials = { kind: credential.kind, read: () => credential };
    const { size, nodeCount = 0, maxValueBytes } = options;
    this.#groups = { rank: newGroup(size, maxValueBytes), node: newGroup(nodeCount, maxValueBytes) };
  }

  get port(): number {
    return this.#listener?.port ?? 0;
  }

  /** Waits, at most `waitMs`, until all who joined have left, then ends every connection. */
  async stop(waitMs: number): Promise<void> {
    if (this.#members().length > 0 && waitMs > 0) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, waitMs);
        this.#whenEmpty = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    this.#listener?.close();
    for (const member of this.#members()) member.end();
  }

  #members(): StoreConnection[] {
    return [...this.#groups.rank.members, ...this.#groups.node.members];
  }

  /** Lets a rank in that has proven itself and agrees on the job; anything else is refused with a reason. */
  async #welcome(channel: ControlChannel): Promise<void> {
    const { size, nodeCount = 0, jobId, maxValueBytes } = this.#options;
    let rank = -1;
    let group = this.#groups.rank;
    await receiveHello(channel, storeHello(this.#credentials), (body) => {
      const { kind, pid, host, ...known } = readRank(body, { rank: size, node: nodeCount });
      group = this.#groups[kind];
      group.core.join(known.rank, { pid, host });
      ({ rank } = known);
      return { jobId };
    });
    const member = new StoreConnection(channel.detach(), {
      rank,
      core: group.core,
      maxValueBytes,
      onDeparture: (gone, departure) => departed(group, gone, departure),
      onEnd: (ended) => {
        group.members.delete(ended);
        if (this.#members().length === 0) this.#whenEmpty?.();
      },
    });
    group.members.add(member);
    member.start();
  }
}

/** Those who take part in collectives together, and hear of each other's departure. */
interface Group {
  readonly core: StoreCore;
  readonly members: Set<StoreConnection>;
}

function newGroup(size: number, maxValueBytes: number): Group {
  return { core: new StoreCore({ size, maxValueBytes }), members: new Set() };
}

function departed({ core, members }: Group, member: StoreConnection, departure: Departure): void {
  const { rank } = member;
  core.leave(rank, departure);
  if (departure.how === 'closed') return;
  const { stack: _hidden, ...error } = encodeError(core.members.failure(rank, 'the job'));
  for (const other of members) if (other !== member) other.announce(rank, error);
}
