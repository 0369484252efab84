// The ceiling of combine: the same rows come back from where they lie in the windows, copied instead of summed.
import { WeftlineError } from '../../../core/errors.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { BenchGroup } from '../interleaved.ts';

export interface CopyBackOptions {
  readonly device: CpuDevice;
  /** Address in this rank's memory of each row to fetch, token-major, and its token. */
  readonly sources: Uint32Array;
  readonly tokens: Int32Array;
  /** bf16 [T, H]: the rows of one token are copied over one another, since combine writes one row of them too. */
  readonly out: Tensor<'bf16'>;
}

/** Returns the timed part, which consists of copies only. */
export function copyBack({ device, sources, tokens, out }: CopyBackOptions): () => void {
  const { copyBytes } = device.kernels;
  const rowBytes = out.bytes / (out.shape[0] as number);
  const targets = Uint32Array.from(tokens, (token) => out.address + token * rowBytes);
  return () => {
    for (let copy = 0; copy < sources.length; copy += 1) {
      copyBytes(targets[copy] as number, sources[copy] as number, rowBytes);
    }
  };
}

/**
 * Collective. Makes sure that the ceiling fetches the right rows: after `send`, which brings each token to its ranks,
 * every token must be back in its place. Fails with WL_CHECK.
 */
export async function checkCopyBack(
  group: BenchGroup,
  { sent, out }: { readonly sent: Tensor<'bf16'>; readonly out: Tensor<'bf16'> },
  send: () => void | Promise<void>,
  back: () => void,
): Promise<void> {
  out.view().fill(0);
  // Others may still look at what an earlier check left in their windows.
  await group.barrier('copy-back-begin');
  await send();
  await group.barrier('copy-back-sent');
  back();
  await group.barrier('copy-back-done');
  const got = out.view();
  const wrong = sent.view().findIndex((value, index) => value !== got[index]);
  if (wrong === -1) return;
  const token = Math.floor(wrong / (out.shape[1] as number));
  throw new WeftlineError(
    'WL_CHECK',
    `The copy-back ceiling brought another row for token ${token} of rank ${group.rank}`,
    {
      details: { rank: group.rank, token },
    },
  );
}
