// Whether the tensors of a block are a launcher's to use: those of another device have addresses that mean other memory here.
import type { Storage } from '../device/tensor.ts';
import { disposedError, wrongBlockError } from './descriptor-errors.ts';
import type { FragmentEngine } from './fragment-engine.ts';

/** Undefined where only addresses are known. */
export interface BlockMemory {
  readonly bounceStorage: Storage | undefined;
  readonly destinationStorage: Storage | undefined;
}

/** Fails with WL_INVALID_ARGUMENT or WL_CLOSED. */
export function requireMemory(engine: FragmentEngine, blocks: readonly BlockMemory[]): void {
  for (let block = 0; block < blocks.length; block++) {
    const { bounceStorage, destinationStorage } = blocks[block]!;
    if (bounceStorage !== undefined) requireStorage(engine, bounceStorage, block, 'bounce buffer');
    if (destinationStorage !== undefined) requireStorage(engine, destinationStorage, block, 'destination');
  }
}

// oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per block
function requireStorage(engine: FragmentEngine, storage: Storage, block: number, memory: string): void {
  if (storage.disposed) throw disposedError(block, memory);
  if (engine.reaches(storage.device)) return;
  const what = `its ${memory} is a tensor of another device, expected one of the launcher's device`;
  throw wrongBlockError(block, what, { memory });
}
