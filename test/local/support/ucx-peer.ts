// A process that offers 64 MiB through the backend ucx and tells how to reach it, until it is killed. It takes what comes;
// told of another side and an operation, it does that with all of it, again and again.
import type { TransferOperation } from '#lib/agent/backend.js';
import { planned } from './planned-transfer.js';
import { fixedBytes, introduce, introduced, UcxSide } from './ucx-side.js';

const BYTES = 64 * 2 ** 20;
const [incarnation = '0123456789abcdef', operation, other] = process.argv.slice(2);
const side = await UcxSide.open('peer', { incarnation });
const local = await side.register(fixedBytes(BYTES));
process.stdout.write(`${introduce(side, local)}\n`);
let post = (): void => {};
if (other !== undefined) {
  const { peer, region } = introduced(other);
  const link = await side.backend.connect(peer, { timeoutMs: 10_000 });
  const remote = link.importRegion(region, { kind: 'host', bytes: BYTES });
  const part = { local, localOffset: 0, remote, remoteOffset: 0, bytes: BYTES };
  const transfer = await link.prepare(operation as TransferOperation, planned([part]));
  post = () => {
    if (transfer.state !== 'pending') transfer.post();
  };
}
// A sleep on the word does not keep the process alive.
setInterval(() => {}, 1000);
for (;;) {
  side.backend.poll();
  post();
  const { seen } = side.wake;
  if (side.backend.prepareSleep() > 0) await side.wake.sleep(seen, 1000);
}
