// The owner's end of the store's worker thread: starts it, stops it, never keeps the process alive for it.
import { WeftlineError } from '../core/errors.ts';
import { packageFile } from '../core/package-file.ts';
import { PooledWork } from '../threads/thread-pool.ts';
import type { StoreServerOptions } from './store-server.ts';
import type { StoreWorkerMessage, StoreWorkerStop } from './store-worker.ts';

export class StoreHost {
  readonly port: number;
  readonly #work: PooledWork;

  /** Fails with WL_CONFIG if the address cannot be listened on. */
  static start({ onLeftOut, ...options }: StoreServerOptions): Promise<StoreHost> {
    return new Promise((resolve, reject) => {
      const work = new PooledWork({
        entry: packageFile('./store-worker.js', import.meta.url),
        name: 'store',
        data: options,
        onMessage: (message) => {
          const told = message as StoreWorkerMessage;
          if (told.kind === 'left out') return onLeftOut?.(told.ranks);
          work.unref();
          if (told.kind === 'listening') resolve(new StoreHost(work, told.port));
          else reject(listenError(options, told));
        },
        // Later, clients find the store gone, which says more.
        onEnd: (cause) => reject(threadFailed(cause)),
      });
    });
  }

  private constructor(work: PooledWork, port: number) {
    this.#work = work;
    this.port = port;
  }

  /** Resolves once the thread has ended: when all ranks have left, or after `waitMs`. */
  async stop(waitMs: number): Promise<void> {
    const stop: StoreWorkerStop = { waitMs };
    this.#work.ref();
    this.#work.port.postMessage(stop);
    await this.#work.over;
  }
}

function threadFailed(cause: unknown): WeftlineError {
  const why = cause instanceof Error ? cause.message : 'it ended';
  return new WeftlineError('WL_INTERNAL', `The thread of the rendezvous store failed: ${why}`, { cause });
}

function listenError(options: StoreServerOptions, failure: { readonly code: string; readonly message: string }): Error {
  const { listen } = options;
  const where = `${listen.host ?? 'all interfaces'}:${listen.port}`;
  const advice =
    failure.code === 'EADDRINUSE'
      ? 'another program uses the port; choose another one (--master, WEFTLINE_MASTER_PORT, MASTER_PORT) on all ranks'
      : 'check WEFTLINE_MASTER_ADDR or MASTER_ADDR, and that only the rank itself uses the variables of its launcher';
  return new WeftlineError('WL_CONFIG', `Cannot listen on ${where} for the ranks: ${failure.message}; ${advice}`, {
    details: { listen, code: failure.code },
  });
}
