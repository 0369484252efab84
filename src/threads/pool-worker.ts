// What a thread of the pool runs: one work after another, each a call of the module that does it.
import { type MessagePort, parentPort } from 'node:worker_threads';

/** What a thread is given to do. */
export interface ThreadOrder {
  /** Address of a module whose `run` is called. */
  readonly entry: string;
  readonly data: unknown;
  readonly port: MessagePort;
}

interface ThreadModule {
  run(data: unknown, port: MessagePort): unknown;
}

const pool = parentPort as MessagePort;
let present: MessagePort | undefined;
let isRunning = false;

async function carryOut({ entry, data, port }: ThreadOrder): Promise<void> {
  isRunning = true;
  present = port;
  const work = (await import(entry)) as ThreadModule;
  await work.run(data, port);
  isRunning = false;
}

pool.on('message', (order: ThreadOrder) => {
  // What the work waits for is all that keeps the thread from its end.
  pool.unref();
  void carryOut(order);
});

process.on('beforeExit', () => {
  if (isRunning) throw new Error('a work of this thread waits for what cannot come any more');
  present?.close();
  present = undefined;
  pool.ref();
  pool.postMessage('over');
});
