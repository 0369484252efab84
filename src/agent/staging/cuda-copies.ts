// Copies of one GPU for staging.
import { WeftlineError } from '../../core/errors.ts';
import type { StagingGpu } from './device-table.ts';

export async function openStagingGpu(): Promise<StagingGpu> {
  throw new WeftlineError('WL_UNSUPPORTED', 'not yet');
}
