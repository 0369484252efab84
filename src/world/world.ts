import type { Settings } from '../settings/settings.ts';
export interface WaitOptions {
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}
export interface World extends AsyncDisposable {
  readonly rank: number;
  readonly size: number;
  readonly localRank: number;
  readonly localSize: number;
  readonly nodeRank: number;
  readonly nodeCount: number;
  readonly jobId: string;
  readonly localRanks: readonly number[];
  readonly settings: Settings;
  barrier(name: string, options?: WaitOptions): Promise<void>;
  allGather<T>(name: string, value: T, options?: WaitOptions): Promise<T[]>;
  close(): Promise<void>;
}
