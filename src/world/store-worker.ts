// The thread of rank 0 that serves the store, so that it goes on while the main thread is busy.
import type { MessagePort } from 'node:worker_threads';
import { bindDeclaredFunctions } from '../native/library.ts';
import { StoreServer, type StoreServerOptions } from './store-server.ts';

/** What the worker tells the main thread. */
export type StoreWorkerMessage =
  | { readonly kind: 'listening'; readonly port: number }
  | { readonly kind: 'failed'; readonly code: string; readonly message: string }
  | { readonly kind: 'left out'; readonly ranks: readonly number[] };

/** What the main thread tells the worker: stop once all ranks have left, or after `waitMs`. */
export interface StoreWorkerStop {
  readonly waitMs: number;
}

export async function run(options: StoreServerOptions, port: MessagePort): Promise<void> {
  const tell = (message: StoreWorkerMessage): void => port.postMessage(message);
  bindDeclaredFunctions();
  try {
    const server = await StoreServer.listen({ ...options, onLeftOut: (ranks) => tell({ kind: 'left out', ranks }) });
    // Once its server has stopped, the port would be all that keeps the thread.
    port.once('message', ({ waitMs }: StoreWorkerStop) => {
      port.unref();
      void server.stop(waitMs);
    });
    tell({ kind: 'listening', port: server.port });
  } catch (error) {
    // The cause of a listener that could not be opened is what the system said.
    const { code = 'unknown', message } = ((error as Error).cause ?? error) as NodeJS.ErrnoException;
    tell({ kind: 'failed', code, message });
  }
}
