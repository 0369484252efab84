// The thread that serves a device's command queues: polls them, posts to the agent's channels, sleeps when nothing comes.
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { MessagePort } from 'node:worker_threads';
import { type EncodedError, encodeError, type WeftlineError } from '../../core/errors.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { WorkerPort } from '../../threads/worker-link.ts';
import { bindDeclaredFunctions, viewAt } from '../../native/library.ts';
import { CommandReader, queuesIn } from './command-queue.ts';
import { CommandServer, type ServedRequest } from './command-server.ts';
import { ProxyAgent } from './proxy-agent.ts';
import type { ProxyCalls, ProxyThread } from './proxy-messages.ts';

/** How long the queues are polled in one turn of the event loop. */
const TURN_MS = 0.05;
/** Rounds between two looks at the clock. */
const ROUNDS = 4;
/** Looks at the queues between two looks at the agent. */
const LOOKS = 4;
/** Longest sleep between two looks at a device's queue, which cannot wake this thread. */
const LONGEST_SLEEP_MS = 1;

export async function run(options: ProxyThread, messages: MessagePort): Promise<void> {
  const port = new WorkerPort<EncodedError>(messages);
  const wake = new WakeWord(options.wake);
  const requests: (ServedRequest | undefined)[] = [];
  const servers: CommandServer[] = [];

  /** Each failure is reported once: commands that follow fail for the same reason. */
  const reported = new WeakSet<WeftlineError>();
  function reportFailure(error: WeftlineError): void {
    if (reported.has(error)) return;
    reported.add(error);
    port.send(encodeError(error));
  }

  const agent = await ProxyAgent.create(options);
  // The agent's backend was imported only now.
  bindDeclaredFunctions();
  const serving = { onFailure: reportFailure, ignoresClosed: options.acrossHosts };

  const calls: ProxyCalls = {
    serve({ memory, queues, capacity }) {
      const buffer = memory instanceof SharedArrayBuffer ? memory : viewAt(memory.address, memory.bytes);
      for (const queue of queuesIn(buffer, queues, capacity)) {
        servers.push(new CommandServer(new CommandReader(queue), requests, serving));
      }
    },
    allocate: (bytes) => agent.allocate(bytes),
    register: (memory) => agent.register(memory),
    deregister: (region) => agent.deregister(region),
    metadata: () => agent.metadata(),
    addRemote: (remote) => agent.addRemote(remote),
    checkRemote: (peer) => agent.checkRemote(peer),
    removeRemote: (peer) => agent.removeRemote(peer),
    listen: (where) => agent.listen(where),
    exchange: ({ how, address }, signal) => agent.exchange(how, { ...address, signal }),
    async request(request, signal) {
      const opened = await agent.openRequest(request, signal);
      requests[request.number] = opened.request;
      return opened.path;
    },
    releaseRequest(number) {
      requests[number] = undefined;
    },
    async settle(_, signal) {
      for (;;) {
        let isQuiet = true;
        for (const server of servers) isQuiet = !server.step() && server.isIdle && isQuiet;
        if (isQuiet) return;
        agent.poll();
        signal.throwIfAborted();
        await nextTurn();
      }
    },
    stop: () => agent.close(),
  };

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
    let lastSeen = wake.seen;
    let sleepMs = 0.05;
    while (!port.isStopped) {
      const seen = wake.seen;
      let now = performance.now();
      // A ring says that something comes, maybe from a device, which cannot ring itself.
      if (seen !== lastSeen) lastWork = now;
      lastSeen = seen;
      const turnEnd = now + TURN_MS;
      let hasWork = false;
      do {
        for (let round = 0; round < ROUNDS; round += 1) hasWork = step() || hasWork;
        now = performance.now();
      } while (now < turnEnd);
      if (hasWork) lastWork = now;
      // A kernel may wait for what a peer that is dead was to send, with no command of its own under way.
      const end = agent.nextEnd();
      if (end !== undefined) reportFailure(end);
      if (hasWork || now - lastWork < options.settings.proxySpinUs / 1000) {
        sleepMs = 0.05;
      } else {
        wake.sleepBlocking(seen, sleepMs);
        sleepMs = Math.min(sleepMs * 2, LONGEST_SLEEP_MS);
      }
      await nextTurn();
    }
  }

  port.serve(calls);
  await serve();
}
