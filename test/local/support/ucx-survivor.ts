// A process whose peers over the backend ucx are killed in the midst of large transfers, one after the other; prints what
// it saw of each, and what they left.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import type { BackendLink, BackendTransfer, TransferOperation } from '#lib/agent/backend.js';
import { holdings, leftSince } from './process-holdings.js';
import { planned } from './planned-transfer.js';
import { fixedBytes, introduce, introduced, UcxSide } from './ucx-side.js';

const BYTES = 64 * 2 ** 20;
const DEADLINE_MS = 10_000;
const [peerModule = '', role, operation, rounds] = process.argv.slice(2);
/** The first peers make UCX set up what it keeps. */
const WARM_UP = 2;

/** The link may end between a look at it and the post. */
function postAgain(link: BackendLink, transfer: BackendTransfer): void {
  try {
    transfer.post();
  } catch (error) {
    if (error !== link.error) throw error;
  }
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
// What Node keeps for children, and the memory of this side, are there before.
await once(spawn('true'), 'exit');
const before = holdings();
const near = await UcxSide.open('near');
const memory = fixedBytes(BYTES);
const local = await near.register(memory);
const codes: string[] = [];
let warm = holdings();
for (let round = 0; round < Number(rounds); round++) {
  const incarnation = (round + 1).toString(16).padStart(16, '0');
  const task = role === 'target' ? [operation as string, introduce(near, local)] : [];
  const child = spawn(process.execPath, [peerModule, incarnation, ...task], { stdio: ['ignore', 'pipe', 'inherit'] });
  const [line] = (await once(child.stdout, 'data')) as [Buffer];
  const { peer, region } = introduced(line.toString());
  const end = performance.now() + DEADLINE_MS;
  // More or less of it has moved when the peer dies.
  const moves = 200 * round;
  let code = 'none';
  if (role === 'target') {
    memory.fill(1);
    let looks = 0;
    const isUntouched = (): boolean => operation === 'write' && memory[0] === 1;
    for (; looks < moves || !near.hasLinks || isUntouched(); looks++) {
      if (performance.now() > end) throw new Error(`the peer did nothing in round ${round}`);
      near.backend.poll();
      await turn();
    }
    child.kill('SIGKILL');
    // The peer made the link, so this side is told nothing; but nothing of it is left.
    while (near.hasLinks && performance.now() < end) {
      near.backend.poll();
      await turn();
    }
    code = near.hasLinks ? 'none' : 'WL_PEER_LOST';
  } else {
    const link = await near.backend.connect(peer, { timeoutMs: DEADLINE_MS });
    const remote = link.importRegion(region, { kind: 'host', bytes: BYTES });
    const part = { local, localOffset: 0, remote, remoteOffset: 0, bytes: BYTES };
    const transfer = await link.prepare(operation as TransferOperation, planned([part]));
    let looks = 0;
    while (link.error === undefined && performance.now() < end) {
      if (transfer.state !== 'pending') postAgain(link, transfer);
      near.backend.poll();
      if (looks++ === moves) child.kill('SIGKILL');
      await turn();
    }
    code = link.error?.code ?? 'none';
    await transfer.release();
    await link.close();
  }
  codes.push(code);
  while (near.hasLinks) {
    if (performance.now() > end + DEADLINE_MS) throw new Error(`the link of round ${round} has not ended`);
    near.backend.poll();
    await turn();
  }
  if (round === WARM_UP - 1) warm = holdings();
}
const leftByPeers = await leftSince(warm);
await near.backend.close();
const leftAtEnd = await leftSince(before);
process.stdout.write(JSON.stringify({ codes, leftByPeers, leftAtEnd }));
