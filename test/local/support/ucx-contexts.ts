// Makes contexts of UCX on several threads at once, two by two, which connect to each other; ends with a code but 0 if any cannot.
import { once } from 'node:events';
import { isMainThread, Worker } from 'node:worker_threads';
import { UcxContext } from '#lib/agent/backends/ucx/ucx-context.js';
import { chooseTransports, localSurroundings } from '#lib/agent/backends/ucx/ucx-transports.js';
import { NativeBlock } from '#lib/native/native-block.js';

const THREADS = 3;
const PAIRS = 20;

function makePairs(): void {
  const transports = chooseTransports(localSurroundings('127.0.0.1'));
  const lost = new NativeBlock(8);
  for (let pair = 0; pair < PAIRS; pair++) {
    using near = new UcxContext({ canSleep: true, transports });
    using far = new UcxContext({ canSleep: true, transports });
    // Fails if UCX was not told to report lost peers.
    near.disconnect(near.connect({ address: far.address, peer: 'far', lostWord: lost.address }));
  }
}

if (isMainThread) {
  const environment = JSON.stringify(process.env);
  const workers = Array.from({ length: THREADS }, () => new Worker(new URL(import.meta.url)));
  const ends = workers.map((worker) => once(worker, 'exit'));
  makePairs();
  await Promise.all(ends);
  if (JSON.stringify(process.env) !== environment) throw new Error('variables of the process have changed');
  console.log('done');
} else makePairs();
