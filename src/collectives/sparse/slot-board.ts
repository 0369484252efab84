// Where workers and aggregators find each other's messages, and how they tell of new ones: what their protocol asks of a carrier.
import type { MemoryRange } from '../../device/tensor.ts';

/** A worker's blocks; the sums of all workers, on their way down; the sums of some workers, on their way up. */
export const contribution = 0;
export const result = 1;
export const partial = 2;
export type MessageKind = typeof contribution | typeof result | typeof partial;

/**
 * A slot has two places of each kind, for messages of even and odd numbers. A worker writes message n + 1 when it has read
 * result n, and an aggregator writes sums n when it has read message n of all below it, and hands result n down when it has
 * read that of the one above: so nobody overwrites what others may still read, and both places stay as they are until then. A carrier that loses messages may therefore carry the latest
 * one again, as often as it likes; it must not take back what is newer. Ranks are those of the group. Hot path.
 */
export interface SlotBoard {
  /** All messages that can be read here, and this rank's own, lie there. */
  readonly memory: MemoryRange;
  /** Where a message can be read, or written by its own rank. `number` counts the slot's messages from 1. */
  address(kind: MessageKind, rank: number, slot: number, number: number): number;
  /** The number of the rank's latest message that has come; 0 before the first. */
  latest(kind: MessageKind, rank: number, slot: number): number;
  /**
   * This rank has written a message of so many bytes: contributions and partial sums go to the node above this rank in the
   * slot's tree, a result to those below.
   */
  post(kind: MessageKind, slot: number, number: number, bytes: number): void;
}
