// A process that offers 64 MiB through the backend ucx, tells how to reach it, and takes what comes until it is killed.
import { fixedBytes, UcxSide } from './ucx-side.js';

const side = await UcxSide.open('peer', { incarnation: process.argv[2] ?? '0123456789abcdef' });
const region = await side.register(fixedBytes(64 * 2 ** 20));
const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');
process.stdout.write(
  `${JSON.stringify({ ...side.peer, connectionInfo: hex(side.peer.connectionInfo), region: hex(region.info) })}\n`,
);
// A sleep on the word does not keep the process alive.
setInterval(() => {}, 1000);
for (;;) {
  side.backend.poll();
  const { seen } = side.wake;
  if (side.backend.prepareSleep() > 0) await side.wake.sleep(seen, 1000);
}
