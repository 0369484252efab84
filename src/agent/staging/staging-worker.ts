// The thread that stages memory of devices: serves calls, carries out commands, moves pieces, sleeps when nothing comes.
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { MessagePort } from 'node:worker_threads';
import { yieldProcessor } from '../../native/libc.ts';
import { bindDeclaredFunctions } from '../../native/library.ts';
import { SpinTime } from '../../threads/spin-time.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { WorkerPort } from '../../threads/worker-link.ts';
import { loadHostBackend } from '../backends/backend-table.ts';
import { openStagingGpu } from './cuda-copies.ts';
import { StagingHost } from './staging-host.ts';
import type { StagingEvent, StagingThreadData } from './staging-thread.ts';

/** How long the thread looks in one turn of the event loop. */
const TURN_MS = 0.2;
/** The same while nothing happens, but soon may. */
const WATCH_MS = 0.05;
/** Looks between two looks at the clock. */
const ROUNDS = 4;
/** Nobody rings for the sockets of greetings while the thread blocks: so much later they are heard. */
const BLOCKING_SLEEP_MS = 1;
/** The thread sleeps in its event loop after so long without anything. */
const IDLE_MS = 20;
const LONG_SLEEP_MS = 1000;

export async function run(data: StagingThreadData, messages: MessagePort): Promise<void> {
  const port = new WorkerPort<StagingEvent>(messages);
  const wake = new WakeWord(data.wake);
  let host: StagingHost;
  try {
    const createBackend = await loadHostBackend(data.backend);
    // The backend was imported only now.
    bindDeclaredFunctions();
    const tell = (event: StagingEvent): void => port.send(event);
    host = await StagingHost.create({ data, createBackend, openGpu: openStagingGpu, wake, tell });
  } catch (error) {
    port.crash(error);
    return;
  }

  /** True if anything happened. */
  function step(): boolean {
    let hasWork = false;
    for (let round = 0; round < ROUNDS; round++) hasWork = host.step() || hasWork;
    return hasWork;
  }

  /** Looks until nothing happens any more, or for a turn. True if anything happened. */
  function work(): boolean {
    const end = performance.now() + TURN_MS;
    let hasWorked = false;
    while (step()) {
      hasWorked = true;
      if (performance.now() > end) break;
    }
    return hasWorked;
  }

  /** Looks again and again for a moment, and lends the processor between looks. True if anything happened. */
  function watch(spin: SpinTime): boolean {
    const end = performance.now() + WATCH_MS;
    for (let now = 0; now < end;) {
      const before = performance.now();
      yieldProcessor();
      now = performance.now();
      if (step()) return true;
      if (spin.lent(now - before)) return false;
    }
    return false;
  }

  async function sleep(seen: number, idle: number): Promise<void> {
    const most = Math.min(host.prepareSleep(), idle < IDLE_MS ? BLOCKING_SLEEP_MS : LONG_SLEEP_MS);
    if (most > BLOCKING_SLEEP_MS) await wake.sleep(seen, most);
    else if (most > 0) wake.sleepBlocking(seen, most);
  }

  port.serve(host);
  const spin = new SpinTime(data.settings.agentSpinUs);
  /** When the present wait began; 0 while there is none. */
  let idleSince = 0;
  while (!host.isStopped) {
    const { seen } = wake;
    const now = performance.now();
    const idle = idleSince === 0 ? 0 : now - idleSince;
    const mayWatch = host.isDeviceBusy || idle < spin.milliseconds;
    if (work() || (mayWatch && watch(spin))) {
      if (idleSince > 0) spin.learn(performance.now() - idleSince);
      idleSince = 0;
    } else {
      if (idleSince === 0) idleSince = now;
      if (!mayWatch) await sleep(seen, idle);
    }
    await nextTurn();
  }
}
