// The agent of a proxy thread: its registered memory, its peers, and a channel per peer that commands are posted to.
import { WeftlineError } from '../core/errors.ts';
import type { WakeWord } from '../core/wake-word.ts';
import type { ServedRequest } from './command-server.ts';
import type { ProxyWorkerData, RequestOptions } from './proxy-messages.ts';

export class ProxyAgent {
  readonly #name: string;
  #regions = 0;

  static async create(
    options: ProxyWorkerData,
    _wake: WakeWord,
    _onFailure: (error: WeftlineError, peer: string) => void,
  ): Promise<ProxyAgent> {
    return new ProxyAgent(options.agent);
  }

  constructor(name: string) {
    this.#name = name;
  }

  allocate(_bytes: number): number {
    throw new WeftlineError('WL_UNSUPPORTED', 'none yet');
  }

  async register(_address: number, _bytes: number): Promise<number> {
    return this.#regions++;
  }

  async release(_region: number): Promise<void> {}

  metadata(): Uint8Array {
    return Buffer.from(JSON.stringify({ name: this.#name }));
  }

  async addRemote(metadata: Uint8Array): Promise<string> {
    return (JSON.parse(Buffer.from(metadata).toString('utf8')) as { name: string }).name;
  }

  async removeRemote(_peer: string): Promise<void> {}

  async openRequest(_options: RequestOptions): Promise<{ request: ServedRequest; path: string }> {
    throw new WeftlineError('WL_UNSUPPORTED', 'none yet');
  }

  poll(): boolean {
    return false;
  }

  prepareSleep(): number {
    return 1;
  }

  async close(): Promise<void> {}
}
