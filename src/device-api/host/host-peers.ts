// How a DeviceHost and its peers come to know each other: by metadata handed over, asked for at a listener, or published.
import { type ListenerAddress, loadPublished, type MetadataStore } from '../../agent/index.ts';
import { addressNames } from '../../agent/exchange/metadata-exchange.ts';
import { checkOptions } from '../../core/check-options.ts';
import type { WaitOptions } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { Settings } from '../../settings/settings.ts';
import type { ProxyService } from '../service/proxy-service.ts';
import type { WriteRequests } from './write-requests.ts';

interface Parts {
  readonly settings: Settings;
  readonly service: ProxyService;
  readonly requests: WriteRequests;
}

/** The calls of DeviceHost say what each does. */
export class HostPeers {
  readonly #parts: Parts;
  /** Take back what this host has published. */
  readonly #withdrawals = new Set<() => Promise<void>>();
  #isClosing = false;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  async add(metadata: Uint8Array, { timeoutMs }: WaitOptions = {}): Promise<string> {
    const { service, requests } = this.#parts;
    const name = await service.addRemote(metadata, timeoutMs === undefined ? {} : { timeoutMs });
    requests.addPeer(name);
    return name;
  }

  async remove(peer: string): Promise<boolean> {
    const { requests, service } = this.#parts;
    requests.checkUnused('peer', ({ request }) => request.peerName === peer);
    requests.removePeer(peer);
    return service.removeRemote(peer);
  }

  /** Asks a listener for its metadata. Returns its name. */
  async meet(how: 'exchange' | 'fetch', address: ListenerAddress): Promise<string> {
    checkOptions(address, addressNames, 'address of the listener');
    const name = await this.#parts.service.exchange(how, address);
    if (name === undefined) throw new WeftlineError('WL_INTERNAL', `Metadata came without a name (${how})`);
    this.#parts.requests.addPeer(name);
    return name;
  }

  /** Tells a listener something. */
  async tell(how: 'send' | 'invalidate', address: ListenerAddress): Promise<void> {
    checkOptions(address, addressNames, 'address of the listener');
    await this.#parts.service.exchange(how, address);
  }

  async publish(store: MetadataStore): Promise<void> {
    const { service } = this.#parts;
    const withdraw = await store.put(service.name, await service.metadata());
    if (withdraw === undefined) return;
    if (this.#isClosing) await withdraw();
    else this.#withdrawals.add(withdraw);
  }

  loadPublished(store: MetadataStore, peer: string, options?: WaitOptions): Promise<string> {
    const { settings } = this.#parts;
    const loadRemoteMetadata = (blob: Uint8Array, wait?: WaitOptions): Promise<string> => this.add(blob, wait);
    return loadPublished({ settings, loadRemoteMetadata }, store, peer, options);
  }

  /** Takes back what was published, and what is being published. Stores that fail are not waited for again. */
  async withdraw(): Promise<void> {
    this.#isClosing = true;
    await Promise.allSettled([...this.#withdrawals].map((withdraw) => withdraw()));
  }
}
