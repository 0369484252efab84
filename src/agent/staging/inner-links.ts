// The links of a staging thread's backend: one per backend of a peer, shared by all that use it.
import type { Backend, BackendLink, BackendPeer, ConnectOptions } from '../backend.ts';

interface Entry {
  readonly link: Promise<BackendLink>;
  users: number;
}

export interface LinkUse {
  readonly link: BackendLink;
  /** Closed when nobody uses it any more. */
  giveBack(): Promise<void>;
}

export class InnerLinks {
  readonly #backend: Backend;
  readonly #entries = new Map<string, Entry>();

  constructor(backend: Backend) {
    this.#backend = backend;
  }

  async use(peer: BackendPeer, options: ConnectOptions): Promise<LinkUse> {
    const key = `${peer.incarnation} ${Buffer.from(peer.connectionInfo).toString('base64')}`;
    let entry = this.#entries.get(key);
    if (entry !== undefined) {
      // Counted before the wait, in which others may give the link back.
      entry.users++;
      if (await isOver(entry.link)) {
        entry.users--;
        if (this.#entries.get(key) === entry) this.#entries.delete(key);
        entry = this.#entries.get(key);
        if (entry !== undefined) entry.users++;
      }
    }
    if (entry === undefined) {
      entry = { link: this.#backend.connect(peer, options), users: 1 };
      this.#entries.set(key, entry);
    }
    const mine = entry;
    let isGivenBack = false;
    const giveBack = async (): Promise<void> => {
      if (isGivenBack) return;
      isGivenBack = true;
      if (--mine.users > 0) return;
      if (this.#entries.get(key) === mine) this.#entries.delete(key);
      await (await mine.link).close();
    };
    try {
      return { link: await mine.link, giveBack };
    } catch (error) {
      if (this.#entries.get(key) === mine) this.#entries.delete(key);
      throw error;
    }
  }
}

async function isOver(link: Promise<BackendLink>): Promise<boolean> {
  try {
    return (await link).error !== undefined;
  } catch {
    return true;
  }
}
