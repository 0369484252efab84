// Protection domains: queue pairs reach only memory regions of their own domain.
import { localFiles } from '../file-probe.ts';
import { nativeError } from '../native-error.ts';
import type { VerbsContext } from './context.ts';
import { refusalOf } from './limits.ts';

export class ProtectionDomain implements Disposable {
  readonly context: VerbsContext;
  readonly address: number;
  #isClosed = false;

  constructor(context: VerbsContext) {
    context.requireOpen();
    this.context = context;
    const { attributes, counts, device } = context;
    this.address = context.calls.ibv_alloc_pd(context.address);
    if (this.address < 0) {
      const request = { device, attributes, limit: 'maxPd', held: counts.domains, bytes: 0 } as const;
      throw refusalOf(
        { call: 'ibv_alloc_pd', what: 'making a protection domain', ...request },
        this.address,
        localFiles(),
      );
    }
    counts.domains += 1;
    context.adopt(this);
  }

  /** After what was made in it was closed; otherwise it fails and the domain stays. */
  close(): void {
    if (this.#isClosed) return;
    const status = this.context.calls.ibv_dealloc_pd(this.address);
    if (status !== 0) throw nativeError('ibv_dealloc_pd', 'closing a protection domain', -status);
    this.#isClosed = true;
    this.context.counts.domains -= 1;
    this.context.release(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
