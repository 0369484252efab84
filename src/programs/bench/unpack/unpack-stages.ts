// The stages from the slowest way to unpack chunks to the fastest: each moves all chunks once, from call to last byte.
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { type DescriptorBlock, type LauncherConfig, UnpackLauncher } from '../../../unpack/index.ts';

export interface Stage {
  readonly name: string;
  /** Not timed: what is there already when chunks come. */
  readonly prepare?: () => Promise<void>;
  readonly run: () => Promise<void>;
  /** Not timed: what others must not wait for. */
  readonly after?: () => Promise<void>;
}

export interface Stages extends AsyncDisposable {
  readonly stages: readonly Stage[];
}

/** Memory of its own for one block, in the device: what the document's launcher took. */
const perChunk: LauncherConfig = { pool: { slots: 1, memory: 'copied' } };

/** Of a GPU; `copyOneByOne` moves each fragment by a copy of its own and waits at the end. */
export async function cudaStages(
  device: CudaDevice,
  blocks: readonly DescriptorBlock[],
  options: { readonly numSms: number; readonly copyOneByOne: () => Promise<void> },
): Promise<Stages> {
  const { numSms, copyOneByOne } = options;
  const pool = { slots: blocks.length };
  const kept = await UnpackLauncher.create(device, { numSms, pool });
  const staying = await UnpackLauncher.create(device, { numSms, pool, persistent: true, idleMs: 5 });
  const prepared = staying.prepare(blocks);
  const awake: Omit<Stage, 'name' | 'run'> = {
    prepare: () => staying.launchSync(blocks[0]!),
    // Until the kernel has left, which those that free memory would wait for.
    after: () => device.drained(),
  };
  const stages: Stage[] = [
    {
      name: 'stream, launcher and memory per chunk, waited for',
      run: async () => {
        for (const block of blocks) {
          using stream = device.createStream();
          await using launcher = await UnpackLauncher.create(device, { ...perChunk, numSms, stream });
          await launcher.launchSync(block);
        }
      },
    },
    {
      name: 'no stream per chunk',
      run: async () => {
        for (const block of blocks) {
          await using launcher = await UnpackLauncher.create(device, { ...perChunk, numSms });
          await launcher.launchSync(block);
        }
      },
    },
    {
      name: 'asynchronous',
      run: async () => {
        const launchers: UnpackLauncher[] = [];
        for (const block of blocks) {
          const launcher = await UnpackLauncher.create(device, { ...perChunk, numSms });
          launcher.launch(block);
          launchers.push(launcher);
        }
        for (const launcher of launchers) await launcher.wait();
        for (const launcher of launchers) await launcher.close();
      },
    },
    ...keptStages(kept, blocks),
    { name: 'persistent, awake', ...awake, run: () => staying.launchSync(blocks) },
    { name: 'persistent, awake, prepared once', ...awake, run: () => staying.launchSync(prepared) },
    { name: 'copies one by one', run: copyOneByOne },
  ];
  const close = async (): Promise<void> => {
    await staying.close();
    await kept.close();
  };
  return { stages, [Symbol.asyncDispose]: close };
}

/** Of the CPU device, which has no streams and nothing to wait for. */
export async function cpuStages(
  device: CpuDevice,
  blocks: readonly DescriptorBlock[],
  copyOneByOne: () => Promise<void>,
): Promise<Stages> {
  const kept = await UnpackLauncher.create(device, { pool: { slots: blocks.length } });
  const stages: Stage[] = [
    {
      name: 'launcher per chunk',
      run: async () => {
        for (const block of blocks) {
          await using launcher = await UnpackLauncher.create(device, { pool: { slots: 1 } });
          launcher.launch(block);
        }
      },
    },
    ...keptStages(kept, blocks),
    { name: 'copies one by one', run: copyOneByOne },
  ];
  return { stages, [Symbol.asyncDispose]: () => kept.close() };
}

function keptStages(launcher: UnpackLauncher, blocks: readonly DescriptorBlock[]): Stage[] {
  const prepared = launcher.prepare(blocks);
  return [
    {
      name: 'preallocated',
      run: () => {
        for (const block of blocks) launcher.launch(block);
        return launcher.wait();
      },
    },
    { name: 'batched', run: () => launcher.launchSync(blocks) },
    { name: 'batched, prepared once', run: () => launcher.launchSync(prepared) },
  ];
}
