// Where workers and aggregators find each other's messages, and how they tell of new ones: what their protocol asks of a carrier.
import type { MemoryRange } from '../../device/host-access.ts';

/** A worker's blocks, or an aggregator's sums. */
export const contribution = 0;
export const result = 1;
export type MessageKind = typeof contribution | typeof result;

/**
 * A slot has two places of each kind, for messages of even and odd numbers. A worker writes message n + 1 when it has read
 * result n, and an aggregator writes result n when it has read message n of all workers: so neither overwrites what others
 * may still read, and both places stay as they are until then. A carrier that loses messages may therefore carry the latest
 * one again, as often as it likes; it must not take back what is newer. Ranks are those of the group. Hot path.
 */
export interface SlotBoard {
  /** All messages that can be read here, and this rank's own, lie there. */
  readonly memory: MemoryRange;
  /** Where a message can be read, or written by its own rank. `number` counts the slot's messages from 1. */
  address(kind: MessageKind, rank: number, slot: number, number: number): number;
  /** The number of the rank's latest message that has come; 0 before the first. */
  latest(kind: MessageKind, rank: number, slot: number): number;
  /** This rank has written a message of so many bytes: a contribution goes to the slot's aggregator, a result to all workers. */
  post(kind: MessageKind, slot: number, number: number, bytes: number): void;
}
