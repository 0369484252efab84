// A process that writes to and reads from another one's memory without a pause, until it may no longer.
import { Agent, type AgentOptions, DescriptorList, type Registration, type Transfer } from 'weftline/agent';
import type { WeftlineError } from 'weftline';

/** What the owner says: its metadata, the name of the region of the round, and what it fills the memory with afterwards. */
export interface DeregisterRound {
  readonly blob: Uint8Array;
  readonly name: string;
  readonly secret: number;
  /** Offset and length of each transfer; every place is written and read. */
  readonly places: readonly (readonly [number, number])[];
}

/** Sent once while every transfer has been posted, and once when all have failed. */
export type DeregisterNews =
  | { readonly is: 'busy' }
  | { readonly is: 'over'; readonly codes: readonly string[]; readonly hasSecret: boolean };

/** What the writer writes. */
export const WRITTEN = 9;

interface Stream {
  readonly transfer: Transfer;
  readonly into: Registration | undefined;
}

/** Small ones fit many times into a turn of the event loop. */
const POSTS_PER_TURN = 32;
const LARGE = 1 << 20;
const PATIENCE_MS = 120_000;

async function keepPosting(transfer: Transfer, bytes: number, onFirst: () => void): Promise<string> {
  for (;;) {
    for (let post = 0; post < (bytes < LARGE ? POSTS_PER_TURN : 1); post += 1) {
      try {
        transfer.post();
        onFirst();
        await transfer.wait();
      } catch (error) {
        onFirst();
        return (error as { code: string }).code;
      }
    }
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** An owner whose calls have little time refuses those that take longer to connect, as they may on a busy machine. */
async function prepare(agent: Agent, options: Parameters<Agent['prepare']>[0]): Promise<Transfer> {
  for (const end = performance.now() + PATIENCE_MS; ;) {
    try {
      return await agent.prepare(options);
    } catch (error) {
      if ((error as WeftlineError).code !== 'WL_TIMEOUT' || performance.now() > end) throw error;
    }
  }
}

async function round(agent: Agent, { blob, name, secret, places }: DeregisterRound): Promise<DeregisterNews> {
  const peer = await agent.loadRemoteMetadata(blob);
  const memory = agent.remoteMemory(peer).find((region) => region.name === name);
  if (memory === undefined) throw new Error(`no region ${name}`);
  const end = Math.max(...places.map(([offset, bytes]) => offset + bytes));
  const out = await agent.allocate(end);
  const back = await agent.allocate(end);
  out.bytes.fill(WRITTEN);
  const streams: (Stream & { readonly bytes: number })[] = [];
  for (const [offset, bytes] of places) {
    const remote = DescriptorList.of(memory, offset, bytes);
    for (const [operation, registration] of [
      ['write', out],
      ['read', back],
    ] as const) {
      const local = DescriptorList.of(registration, offset, bytes);
      const into = operation === 'read' ? back : undefined;
      streams.push({ transfer: await prepare(agent, { operation, peer, local, remote }), into, bytes });
    }
  }
  let waiting = streams.length;
  const codes = await Promise.all(
    streams.map(({ transfer, bytes }) => {
      let isFirst = true;
      return keepPosting(transfer, bytes, () => {
        if (!isFirst) return;
        isFirst = false;
        waiting -= 1;
        if (waiting === 0) process.send?.({ is: 'busy' } satisfies DeregisterNews);
      });
    }),
  );
  const hasSecret = Buffer.from(back.bytes.buffer, back.bytes.byteOffset, back.bytes.length).includes(secret);
  for (const { transfer } of streams) await transfer.close();
  await out.close();
  await back.close();
  return { is: 'over', codes, hasSecret };
}

if (process.send !== undefined) {
  const [options = '{}'] = process.argv.slice(2);
  const agent = await Agent.create('writer', { ...(JSON.parse(options) as AgentOptions), token: 'secret' });
  process.on('message', (order: DeregisterRound) => {
    round(agent, order).then(
      (news) => process.send?.(news),
      (error: unknown) => {
        console.error(error);
        process.exit(1);
      },
    );
  });
  process.send({ is: 'busy' } satisfies DeregisterNews);
}
