// The thread of rank 0 that serves the store, so that it goes on while the main thread is busy.
import { parentPort, workerData } from 'node:worker_threads';
import { bindDeclaredFunctions } from '../native/library.ts';
import { StoreServer, type StoreServerOptions } from './store-server.ts';

/** What the worker tells the main thread. */
export type StoreWorkerMessage =
  | { readonly kind: 'listening'; readonly port: number }
  | { readonly kind: 'failed'; readonly code: string; readonly message: string };

/** What the main thread tells the worker: stop once all ranks have left, or after `waitMs`. */
export interface StoreWorkerStop {
  readonly waitMs: number;
}

function tell(message: StoreWorkerMessage): void {
  parentPort?.postMessage(message);
}

bindDeclaredFunctions();
try {
  const server = await StoreServer.listen(workerData as StoreServerOptions);
  parentPort?.once('message', ({ waitMs }: StoreWorkerStop) => void server.stop(waitMs));
  tell({ kind: 'listening', port: server.port });
} catch (error) {
  // Of a listener that could not be opened: what the system said.
  const { code = 'unknown', message } = ((error as Error).cause ?? error) as NodeJS.ErrnoException;
  tell({ kind: 'failed', code, message });
}
