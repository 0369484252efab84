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
import { readRank, storeHello } from './store-hello.ts';

export interface StoreServerOptions {
  readonly listen: ListenTarget;
  readonly size: number;
  /** Fixed for the job: secrets of the job follow from it. */
  readonly credential: Credential;
  readonly jobId: string;
  readonly maxValueBytes: number;
  readonly settings: Pick<Settings, 'maxStrangers' | 'greetingMs' | 'timeoutMs'>;
}

export class StoreServer {
  readonly #options: StoreServerOptions;
  readonly #credentials: Credentials;
  readonly #core: StoreCore;
  readonly #members = new Set<StoreConnection>();
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
    this.#core = new StoreCore(options);
  }

  get port(): number {
    return this.#listener?.port ?? 0;
  }

  /** Waits, at most `waitMs`, until all ranks that joined have left, then ends every connection. */
  async stop(waitMs: number): Promise<void> {
    if (this.#members.size > 0 && waitMs > 0) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, waitMs);
        this.#whenEmpty = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    this.#listener?.close();
    for (const member of this.#members) member.end();
  }

  /** Lets a rank in that has proven itself and agrees on the job; anything else is refused with a reason. */
  async #welcome(channel: ControlChannel): Promise<void> {
    const { size, jobId, maxValueBytes } = this.#options;
    let rank = -1;
    await receiveHello(channel, storeHello(this.#credentials), (body) => {
      const { pid, host, ...known } = readRank(body, size);
      this.#core.join(known.rank, { pid, host });
      ({ rank } = known);
      return { jobId };
    });
    const member = new StoreConnection(channel.detach(), {
      rank,
      core: this.#core,
      maxValueBytes,
      onDeparture: (gone, departure) => this.#departed(gone, departure),
      onEnd: (ended) => {
        this.#members.delete(ended);
        if (this.#members.size === 0) this.#whenEmpty?.();
      },
    });
    this.#members.add(member);
    member.start();
  }

  #departed(member: StoreConnection, departure: Departure): void {
    const { rank } = member;
    this.#core.leave(rank, departure);
    if (departure.how === 'closed') return;
    const { stack: _hidden, ...error } = encodeError(this.#core.members.failure(rank, 'the job'));
    for (const other of this.#members) if (other !== member) other.announce(rank, error);
  }
}
