// The thread of a UCX worker.
import { workerData } from 'node:worker_threads';
import { WakeWord } from '../../../core/wake-word.ts';
import { type EngineThreadData, serveEngine } from '../../../transport/host/serve-engine.ts';
import type { UcxCall } from './host-calls.ts';
import { UcxHost } from './ucx-host.ts';

/** What the thread needs to know. */
export interface UcxThreadOptions {
  /** To be rung for everything that happens. */
  readonly news: readonly SharedArrayBuffer[];
  readonly spinMicroseconds: number;
}

const thread = workerData as EngineThreadData;
const { news, spinMicroseconds } = thread.data as UcxThreadOptions;

serveEngine<UcxCall>(thread, (requests, onEvent) => {
  const words = news.map((buffer) => new WakeWord(buffer));
  return new UcxHost({ requests, onEvent, news: words, canSleep: true, spinMicroseconds });
});
