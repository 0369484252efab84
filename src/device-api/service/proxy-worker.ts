// The thread that serves a device's command queues: polls them, posts to the agent's channels, sleeps when nothing comes.
import { setImmediate as nextTurn } from 'node:timers/promises';
import { parentPort, workerData } from 'node:worker_threads';
import { encodeError, type WeftlineError } from '../../core/errors.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { viewAt } from '../../native/library.ts';
import { CommandReader } from './command-queue.ts';
import { CommandServer, type ServedRequest } from './command-server.ts';
import { queuesIn } from './queue-layout.ts';
import { ProxyAgent } from './proxy-agent.ts';
import type { ProxyAnswer, ProxyCall, ProxyCallMessage, ProxyWorkerData, SharedBytes } from './proxy-messages.ts';

/** How long the queues are polled in one turn of the event loop. */
const TURN_MS = 0.05;
/** Rounds between two looks at the clock. */
const ROUNDS = 4;
/** Looks at the queues between two looks at the agent. */
const LOOKS = 4;
/** Longest sleep between two looks at a device's queue, which cannot wake this thread. */
const LONGEST_SLEEP_MS = 1;

const options = workerData as ProxyWorkerData;
const wake = new WakeWord(options.wake);
const requests: (ServedRequest | undefined)[] = [];
const servers: CommandServer[] = [];
const life = { isWanted: true };

function post(message: ProxyAnswer): void {
  parentPort?.postMessage(message);
}

/** Each failure is told once: commands that follow fail for the same reason. */
const told = new WeakSet<WeftlineError>();
function tellFailure(error: WeftlineError): void {
  if (told.has(error)) return;
  told.add(error);
  post({ failure: encodeError(error) });
}

const agent = await ProxyAgent.create(options);

async function answer(call: ProxyCall): Promise<unknown> {
  switch (call.name) {
    case 'serve':
      for (const memory of queuesIn(bufferOf(call.memory), call.queues, call.capacity)) {
        servers.push(new CommandServer(new CommandReader(memory), requests, tellFailure));
      }
      return undefined;
    case 'allocate':
      return agent.allocate(call.bytes);
    case 'register':
      return agent.register(call.address, call.bytes);
    case 'metadata':
      return agent.metadata();
    case 'addRemote':
      return agent.addRemote(call.metadata);
    case 'request': {
      const { request, path } = await agent.openRequest(call.options);
      requests[call.options.number] = request;
      return path;
    }
    case 'stop':
      life.isWanted = false;
      return agent.close();
    default:
      return call satisfies never;
  }
}

function bufferOf(memory: SharedBytes): ArrayBufferLike {
  return memory instanceof SharedArrayBuffer ? memory : viewAt(memory.address, memory.bytes);
}

/** Some looks at the queues and one at the agent, which costs more; true if anything happened. */
function step(): boolean {
  let hasWork = false;
  for (let look = 0; look < LOOKS; look += 1) {
    for (const server of servers) hasWork = server.step() || hasWork;
  }
  return agent.poll() || hasWork;
}

async function serve(): Promise<void> {
  let lastWork = performance.now();
  let sleepMs = 0.05;
  while (life.isWanted) {
    const seen = wake.seen;
    let now = performance.now();
    const end = now + TURN_MS;
    let hasWork = false;
    do {
      for (let round = 0; round < ROUNDS; round += 1) hasWork = step() || hasWork;
      now = performance.now();
    } while (now < end);
    if (hasWork) lastWork = now;
    // A kernel may wait for what a peer that is dead was to send, with no command of its own under way.
    const death = agent.nextDeath();
    if (death !== undefined) tellFailure(death);
    if (hasWork || now - lastWork < options.settings.proxySpinUs / 1000) {
      sleepMs = 0.05;
    } else {
      wake.sleepBlocking(seen, sleepMs);
      sleepMs = Math.min(sleepMs * 2, LONGEST_SLEEP_MS);
    }
    await nextTurn();
  }
}

parentPort?.on('message', ({ id, call }: ProxyCallMessage) => {
  answer(call).then(
    (result) => {
      post({ id, result });
      if (call.name === 'stop') parentPort?.close();
    },
    (error: unknown) => {
      post({ id, error: encodeError(error) });
      // An agent that could not be closed in time must not keep the thread, for whose end the host waits.
      if (call.name === 'stop') parentPort?.close();
    },
  );
});
await serve();
