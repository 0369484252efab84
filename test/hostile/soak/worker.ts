// A process that is soaked, or the other one of its pair. Arguments: the kind, then how many seconds, or "peer".
// Prints samples of both as JSON, one a line.
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { CpuDevice } from 'weftline';
import { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import {
  agentCalls,
  endpointCalls,
  SoakedAgent,
  SoakedEndpoint,
  SoakedObjects,
  type SoakedSide,
  SoakedTransport,
  type SoakKind,
  transportCalls,
} from './kinds.ts';
import { PeerProcess, serve } from './peer-link.ts';
import { takeSample } from './sample.ts';

const [kind, words] = process.argv.slice(2) as [SoakKind, string];
const script = fileURLToPath(import.meta.url);
const start = performance.now();
const SAMPLES = 150;
const PAUSE_EVERY = 16;

if (words === 'peer') {
  const calls = kind === 'endpoint' ? endpointCalls : kind === 'transport' ? transportCalls : agentCalls;
  serve({ ...calls, sample: (cycles: number) => takeSample(start, cycles) });
} else await soak(Number(words));

async function soak(seconds: number): Promise<void> {
  const gapMs = Math.max(200, (1000 * seconds) / SAMPLES);
  const peer = kind === 'ep' || kind === 'objects' ? undefined : new PeerProcess(script, [kind, 'peer']);
  const side = await sideOf(peer);
  let next = 0;
  for (let cycle = 0; performance.now() - start < seconds * 1000; cycle++) {
    await side.cycle(cycle);
    if (cycle % PAUSE_EVERY === 0) await sleep(1);
    if (performance.now() - start < next) continue;
    next = performance.now() - start + gapMs;
    console.log(
      JSON.stringify({ kind, who: process.env['WEFTLINE_RANK'] ?? 'self', sample: takeSample(start, cycle) }),
    );
    if (peer !== undefined) {
      console.log(JSON.stringify({ kind, who: 'peer', sample: await peer.call('sample', cycle) }));
    }
  }
  await side.close();
  await peer?.end();
}

async function sideOf(peer: PeerProcess | undefined): Promise<SoakedSide> {
  if (kind === 'objects') return new SoakedObjects();
  if (peer === undefined) return soakedRank();
  if (kind === 'endpoint') return new SoakedEndpoint(peer);
  if (kind === 'transport') return new SoakedTransport(peer);
  return new SoakedAgent(kind as 'local', peer);
}

/** Buffers, layers and the store of a job. All ranks do as many cycles. */
async function soakedRank(): Promise<SoakedSide> {
  const world = await join({ settings: { timeoutMs: 20_000 } });
  const seconds = Number(words);
  return {
    cycle: async (number) => {
      await using device = await CpuDevice.create();
      const [tokens, hidden, topk, experts] = [32, 128, 2, 8];
      const config = { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk };
      await using buffer = await EpBuffer.create(world, device, config);
      await using layer = await EPAll2AllLayer.create(world, device, {
        maxTokensPerRank: tokens,
        hidden,
        maxTopk: topk,
        numExperts: experts,
      });
      using x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(0x3f80));
      const ids = Int32Array.from({ length: tokens * topk }, (_, at) => at % experts);
      using topkIdx = await device.tensor('i32', [tokens, topk], ids);
      for (let round = 0; round < 4; round++) {
        const { recvX, handle } = await buffer.dispatch({ x, topkIdx });
        if ('data' in recvX) throw new Error('bf16 rows were sent');
        const { combinedX } = await buffer.combine({ x: recvX, handle });
        combinedX.close();
        handle.close();
        const { recvX: output, handle: rows } = await layer.dispatch({ x, topkIdx });
        (await layer.combine({ x: output, handle: rows })).close();
        rows.close();
      }
      await world.store.set(`key/${world.rank}`, Buffer.alloc(1000));
      // Whether there is time left is rank 0's to say: all must stop after the same cycle.
      const isOver = await world.allGather('over', performance.now() - start > seconds * 1000 - 500);
      if (isOver[0] !== true) return;
      await world.barrier('the end');
      await world.close();
      console.log(JSON.stringify({ kind, who: String(world.rank), cycles: number }));
      process.exit(0);
    },
    close: () => world.close(),
  };
}
