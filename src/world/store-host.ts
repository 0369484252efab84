// The owner's end of the store's worker thread: starts it, stops it, never keeps the process alive for it.
import type { Worker } from 'node:worker_threads';
import { WeftlineError } from '../core/errors.ts';
import { packageFile } from '../core/package-file.ts';
import { startWorker } from '../threads/start-worker.ts';
import type { StoreServerOptions } from './store-server.ts';
import type { StoreWorkerMessage, StoreWorkerStop } from './store-worker.ts';

export class StoreHost {
  readonly port: number;
  readonly #worker: Worker;
  readonly #ended: Promise<void>;

  /** Fails with WL_CONFIG if the address cannot be listened on. */
  static start(options: StoreServerOptions): Promise<StoreHost> {
    const worker = startWorker(packageFile('./store-worker.js', import.meta.url), {
      workerData: options,
      name: 'store',
    });
    return new Promise((resolve, reject) => {
      // Later, clients find the store gone, which says more: the listener stays, an error without one would end the process.
      worker.on('error', (cause) => {
        reject(
          new WeftlineError('WL_INTERNAL', `The thread of the rendezvous store failed: ${cause.message}`, { cause }),
        );
      });
      worker.once('message', (message: StoreWorkerMessage) => {
        worker.unref();
        if (message.kind === 'listening') resolve(new StoreHost(worker, message.port));
        else reject(listenError(options, message));
      });
    });
  }

  private constructor(worker: Worker, port: number) {
    this.#worker = worker;
    this.#ended = new Promise((resolve) => worker.once('exit', () => resolve()));
    this.port = port;
  }

  /** Resolves once the thread has ended: when all ranks have left, or after `waitMs`. */
  async stop(waitMs: number): Promise<void> {
    const stop: StoreWorkerStop = { waitMs };
    this.#worker.ref();
    this.#worker.postMessage(stop);
    await this.#ended;
  }
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
