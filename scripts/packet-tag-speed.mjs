// How fast packets are tagged and checked: the kernel alone, and with the copy into its memory. Needs a build.
import { randomBytes } from 'node:crypto';
import { packetKey } from '../dist/abi/cpu-kernels.js';
import { TagMemory } from '../dist/transport/authentication/packet-guard.js';

const ROUNDS = 200;
const memory = new TagMemory({});
const { kernels, heads, body, tags, received, room } = memory;
const key = memory.addKey(randomBytes(packetKey.size));
const source = new Uint8Array(new SharedArrayBuffer(room)).map((_, index) => index);

/** Nanoseconds per packet, in the best round. */
function time(packets, work) {
  const repeats = Math.ceil(50 / packets);
  let best = Number.POSITIVE_INFINITY;
  for (let round = 0; round < ROUNDS; round += 1) {
    const start = performance.now();
    for (let count = 0; count < repeats; count += 1) work();
    best = Math.min(best, ((performance.now() - start) * 1e6) / repeats / packets);
  }
  return best;
}

for (const [bytes, packets] of [
  [64, 1],
  [1472, 44],
  [8192, 7],
  [65_472, 1],
]) {
  const payload = bytes - 64;
  const tag = () => kernels.tagPackets(key, heads, 64, body, payload, payload, packets, 0, 0, tags);
  const results = {
    tag: time(packets, tag),
    'copy and tag': time(packets, () => {
      memory.copy(source, 0, packets * payload, body);
      tag();
    }),
    'copy and check': time(packets, () => {
      memory.copy(source, 0, packets * bytes, received);
      for (let packet = 0; packet < packets; packet += 1) kernels.isTagged(key, received + packet * bytes, bytes, 0, 0);
    }),
  };
  const text = Object.entries(results).map(
    ([name, ns]) => `${name} ${ns.toFixed(0)} ns (${(bytes / ns).toFixed(1)} GB/s)`,
  );
  console.log(`${packets} x ${bytes} bytes, per packet: ${text.join(', ')}`);
}
