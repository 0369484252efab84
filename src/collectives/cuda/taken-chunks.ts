// Whether the receivers have taken all chunks of messages that this rank put into their windows: they say so in this rank's.
import { setTimeout as sleep } from 'node:timers/promises';
import { messageBlock, messageFlags } from '../../abi/cuda-collectives.ts';
import { Tensor } from '../../device/tensor.ts';
import type { CudaWindow } from '../../windows/cuda-window.ts';
import type { CudaCollectiveRegions } from './cuda-regions.ts';

const POLL_MS = 1;

export interface SentChunks {
  readonly window: CudaWindow;
  readonly regions: Pick<CudaCollectiveRegions, 'flags' | 'lanes'>;
  readonly messageBlocks: Tensor;
  /** Fails when nobody will take them any more. */
  readonly throwIfUnusable: () => void;
}

/** After the last message's kernel has ended. Returns at the latest after `timeoutMs`. */
export async function awaitTaken(sent: SentChunks, timeoutMs: number): Promise<void> {
  const { window, regions, messageBlocks } = sent;
  const ranks = window.ranks.length;
  const shape = { ranks, lanes: regions.lanes };
  const flags = new Tensor(window.storage, 'u8', [regions.lanes * ranks * messageFlags.size], regions.flags);
  const blocks = wordsOf(await messageBlocks.toHost());
  const end = performance.now() + timeoutMs;
  while (!areTaken(blocks, wordsOf(await flags.toHost()), shape) && performance.now() < end) {
    sent.throwIfUnusable();
    await sleep(POLL_MS);
  }
}

/** `blocks`: MessageBlock of each block; `flags`: MessageFlags by lane and rank. Counters wrap. */
export function areTaken(
  blocks: Uint32Array,
  flags: Uint32Array,
  { ranks, lanes }: { readonly ranks: number; readonly lanes: number },
): boolean {
  for (let lane = 0; lane < lanes; lane++) {
    // Blocks of even numbers send.
    const chunks = (2 * lane * messageBlock.size + messageBlock.offset.chunks) / 4;
    for (let peer = 0; peer < ranks; peer++) {
      const taken = flags[((lane * ranks + peer) * messageFlags.size + messageFlags.offset.taken) / 4]!;
      if (((taken - blocks[chunks + peer]!) | 0) < 0) return false;
    }
  }
  return true;
}

function wordsOf(bytes: ArrayBufferView): Uint32Array {
  return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
}
