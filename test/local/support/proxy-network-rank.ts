// A rank whose "device" pushes commands for peers on other hosts, through the thread that serves its queues. Arguments: the
// scenario, and the rank that ends first. Prints what came, and what was heard of peers that ended, as JSON.
import { join } from 'weftline/world';
import { queueCommandKinds } from '#lib/abi/device-api.js';
import { networkCellOffset, networkCells, networkCellsBytes } from '#lib/abi/network.js';
import { networkAbortsBytes, PeerWords } from '#lib/group/network/peer-words.js';
import { ProxyNetwork } from '#lib/group/network/proxy-network.js';
import { CommandWriter, emptyQueueCommand, queueBytes, queuesIn } from '#lib/device-api/service/command-queue.js';
import { addressOf } from '#lib/native/library.js';

const [, , scenario = '', enderText = ''] = process.argv;
const QUEUES = 4;
const CAPACITY = 64;
/** What is sent last, in rounds of so many bytes, takes longer than a process to end. */
const [LAST, PART] = scenario === 'no close' ? [30, 2_000_000] : [1, 100_000];
const world = await join();
const isEnder = world.rank === Number(enderText);
const { size, rank } = world;

// Cells, why ranks gave up, what goes to each channel of each peer, what comes from each.
const cells = 0;
const channelBytes = QUEUES * PART;
const aborts = networkCellsBytes(size);
const outAt = aborts + networkAbortsBytes(size);
const inAt = outAt + channelBytes;
const bytes = inAt + size * channelBytes;
const memory = new Uint8Array(new SharedArrayBuffer(bytes));
const words = new Int32Array(memory.buffer);
for (let channel = 0; channel < QUEUES; channel++) {
  memory.fill(1 + rank * QUEUES + channel, outAt + channel * PART, outAt + (channel + 1) * PART);
}
const queueMemory = new SharedArrayBuffer(QUEUES * queueBytes(CAPACITY));
const writers = queuesIn(queueMemory, QUEUES, CAPACITY).map((queue) => new CommandWriter(queue));

const heard: { readonly code: string; readonly peer: number | undefined }[] = [];
const peerWords = new PeerWords(world.ranks, { buffer: memory.buffer, start: 0, cells, aborts });
const network = await ProxyNetwork.create({
  group: world,
  name: 'test',
  memory: { address: Number(addressOf(memory)), bytes },
  words: peerWords,
  queues: { memory: queueMemory, queues: QUEUES, capacity: CAPACITY },
  onEnd: ({ code }, peer) => heard.push({ code, peer }),
});
const { channels, routes } = network;

function countOf(peer: number, cell: number): number {
  return Atomics.load(words, (cells + networkCellOffset(peer, cell)) / 4);
}

async function until(isDone: () => boolean, what: string): Promise<void> {
  const end = performance.now() + 120_000;
  while (!isDone()) {
    if (performance.now() > end) throw new Error(`Rank ${rank} waited for ${what}; heard ${JSON.stringify(heard)}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

/** What a kernel does: a put and a signal on each channel to each peer. */
function send(): void {
  const command = emptyQueueCommand();
  for (const peer of routes.peers) {
    for (let channel = 0; channel < channels; channel++) {
      command.request = network.requestTo(peer, channel);
      command.kind = queueCommandKinds.put;
      command.source = outAt + channel * PART;
      command.target = inAt + (rank * QUEUES + channel) * PART;
      command.bytes = PART;
      writers[channel]!.push(command);
      command.kind = queueCommandKinds.signal;
      command.target = cells + networkCellOffset(rank, networkCells.rows + channel);
      command.low = 1;
      writers[channel]!.push(command);
    }
  }
  network.wake();
}

/** What a signal stands for is there when it is. */
async function receive(round: number): Promise<void> {
  for (const peer of routes.peers) {
    for (let channel = 0; channel < channels; channel++) {
      await until(() => countOf(peer, networkCells.rows + channel) >= round, `rows of rank ${peer}`);
      const from = inAt + (peer * QUEUES + channel) * PART;
      const value = 1 + peer * QUEUES + channel;
      if (!memory.subarray(from, from + PART).every((byte) => byte === value)) throw new Error(`bytes of rank ${peer}`);
    }
  }
}

const others = routes.peers;
let reason: string | undefined;
for (let round = 1; round <= 3; round++) {
  send();
  await receive(round);
  await world.barrier(`round ${round}`);
}
const isPeerOfEnder = others.includes(Number(enderText));
if (scenario === 'close' && !isEnder) {
  if (isPeerOfEnder) await until(() => heard.length > 0, 'the end of a peer');
  // Commands for a peer that has closed end too.
  send();
} else if (scenario === 'last words' || scenario === 'no close') {
  if (isEnder) for (let sent = 0; sent < LAST; sent++) send();
  else if (isPeerOfEnder) {
    for (let channel = 0; channel < channels; channel++) {
      await until(() => countOf(Number(enderText), networkCells.rows + channel) === 3 + LAST, 'the last rows');
    }
  }
} else if (scenario === 'give up') {
  const ender = Number(enderText);
  if (isEnder) network.giveUp(new Error('out of luck'));
  else if (isPeerOfEnder) await until(() => peerWords.told(ender) !== undefined, 'word of a peer');
  reason = peerWords.told(ender)?.message;
  await world.barrier('told');
} else if (scenario === 'kill') {
  if (isEnder) process.kill(process.pid, 'SIGKILL');
  if (isPeerOfEnder) await until(() => heard.length > 0, 'the death of a peer');
}
// Others than the ender may be heard of as well, once they close.
const told = heard.filter(({ peer }) => peer === Number(enderText));
if (scenario !== 'no close') await network.close();
if (scenario !== 'kill' && scenario !== 'no close') await world.barrier('end');
console.log(JSON.stringify({ channels, peers: others, heard: told, reason }));
if (scenario !== 'no close') await world.close();
