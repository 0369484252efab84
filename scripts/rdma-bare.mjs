// Writes and round trips over two queue pairs of one process, with native calls and nothing of an agent around them: what
// Node can reach on the devices rxe0 and rxe1 at most. For rdma-figures.mjs.
import { NativeBlock } from '../dist/native/library.js';
import { CompletionQueue } from '../dist/native/verbs/completion-queue.js';
import { ProtectionDomain, VerbsContext } from '../dist/native/verbs/context.js';
import { MemoryRegion } from '../dist/native/verbs/memory-region.js';
import { QueuePair } from '../dist/native/verbs/queue-pair.js';
import { completionOpcode, sendFlag, sendOpcode } from '../dist/native/verbs/c-structs.js';
import { localFiles } from '../dist/native/file-probe.js';
import { rdmaHardware } from '../dist/rails/rdma-choice.js';

const REQUESTS = 256;
const PORT = 1;

class Side {
  constructor(device, bytes) {
    this.context = VerbsContext.open(device);
    const { ports } = rdmaHardware(localFiles()).find(({ name }) => name === device);
    this.gid = ports[0].gids.find(({ type, gid }) => /v2/i.test(type) && /ffff/i.test(gid)) ?? ports[0].gids.at(-1);
    const domain = new ProtectionDomain(this.context);
    this.queue = new CompletionQueue(this.context, 4 * REQUESTS);
    this.memory = new NativeBlock(bytes);
    this.region = MemoryRegion.host(domain, this.memory.address, bytes, { remoteWrite: true });
    this.pair = new QueuePair(domain, {
      service: 'rc',
      sendCompletions: this.queue,
      receiveCompletions: this.queue,
      maxSends: REQUESTS,
      maxReceives: REQUESTS,
    });
    this.pair.initialize(PORT, { remoteWrite: true });
  }

  connect(other) {
    const remoteGid = Buffer.from(other.gid.gid.replaceAll(':', ''), 'hex');
    const path = { port: PORT, gidIndex: this.gid.index, remoteGid, remoteLid: 0, trafficClass: 0 };
    this.pair.connect({ number: other.pair.number, firstSequence: 0, path }, { mtu: 1024 });
    this.remote = { address: other.memory.address, key: other.region.remoteKey };
    const { receives } = this.pair;
    while (receives.start(0));
    receives.post();
  }

  post(opcode, bytes) {
    const { sends } = this.pair;
    sends.start(opcode, sendFlag.signaled, 0);
    sends.add(this.memory.address, bytes, this.region.localKey);
    sends.target(this.remote.address, this.remote.key);
    sends.immediate(1);
    sends.post();
  }

  /** Takes completions; returns how many words and how many ends of writes there were. */
  take() {
    const { queue, pair } = this;
    const count = queue.poll();
    let words = 0;
    for (let index = 0; index < count; index += 1) {
      if (!queue.isSuccess(index)) throw queue.errorAt(index, 'a bare write');
      if (queue.opcodeAt(index) === completionOpcode.receiveWriteWithImmediate) {
        words += 1;
        pair.receives.done();
        pair.receives.start(0);
        if (pair.receives.unposted === 64) pair.receives.post();
      } else pair.sends.doneUntil(queue.sequenceAt(index));
    }
    return { words, ends: count - words };
  }
}

/** Figures as those of the bench: MB/s and microseconds there and back. */
export function bare({ bytes, count, inflight, pings, pingBytes }) {
  const [here, there] = ['rxe0', 'rxe1'].map((device) => new Side(device, bytes * inflight));
  here.connect(there);
  there.connect(here);
  const move = (most) => {
    let [posted, done] = [0, 0];
    const begin = performance.now();
    while (done < most) {
      while (posted < most && posted - done < inflight) {
        here.post(sendOpcode.write, bytes);
        posted += 1;
      }
      done += here.take().ends;
    }
    return (bytes * most) / (performance.now() - begin) / 1000;
  };
  const ping = () => {
    const begin = performance.now();
    here.post(sendOpcode.writeWithImmediate, pingBytes);
    while (there.take().words === 0);
    there.post(sendOpcode.writeWithImmediate, pingBytes);
    while (here.take().words === 0);
    return (performance.now() - begin) * 1000;
  };
  try {
    for (let round = 0; round < 3000; round += 1) ping();
    move(Math.min(count, 200));
    const times = Array.from({ length: pings }, ping).toSorted((a, b) => a - b);
    return { megabytes: move(count), ping: times[Math.floor(pings / 2)] };
  } finally {
    for (const { context } of [here, there]) context.close();
  }
}
