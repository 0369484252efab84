// What transfers and channels over UCX need of their link.
import type { WeftlineError } from '../../../core/errors.ts';
import type { LinkBlock } from './link-block.ts';
import type { Outgoing } from './outgoing.ts';
import type { UcxDriver } from './ucx-driver.ts';

export interface LinkOperations {
  readonly driver: UcxDriver;
  readonly block: LinkBlock;
  readonly outgoing: Outgoing;
  readonly error: WeftlineError | undefined;
  readonly isDrained: boolean;
  begin(kind: number, slot: number, operation: number, message: Uint8Array | undefined): number;
  commit(): void;
  errorOf(failure: number, detail: number): WeftlineError;
  settle(isSo: () => boolean): Promise<void>;
}
