// What hosts of a simulated collective send to each other, and when: a message may begin when others have come.
import { invalidArgument } from '../../../core/errors.ts';

/** Begins a message. `tag` is handed to arrived(). */
export type SendMessage = (source: number, destination: number, bytes: number, tag: number) => void;

export interface CollectiveSchedule {
  /** "ring". */
  readonly name: string;
  readonly hosts: number;
  /** Messages of all hosts. */
  readonly messages: number;
  /** Messages on the longest way, one after another, whose bytes are those given: what latency alone costs. */
  readonly steps: { readonly count: number; readonly bytes: number };
  /** Two hosts exchange one message in each direction at most: a connection is needed only for it. */
  readonly usesConnectionsOnce: boolean;
  begin(send: SendMessage): void;
  /** That message has come; what may go on by it is sent. */
  arrived(source: number, destination: number, tag: number, send: SendMessage): void;
}

/** Parts of tensors, of all hosts together, that a schedule keeps account of: as many bytes or twice as many. */
const MAX_PARTS = 2 ** 30;

/** Fails with WL_INVALID_ARGUMENT for tensors of so many `bytes`, cut into parts of `partSize`, of which memory cannot hold the account. */
export function requireParts(hosts: number, bytes: number, partSize: number): void {
  if (hosts * Math.ceil(bytes / partSize) <= MAX_PARTS) return;
  const most = Math.floor(MAX_PARTS / hosts) * partSize;
  throw invalidArgument('bytes', bytes, `at most ${most} with ${hosts} hosts and parts of ${partSize} bytes`);
}

/** Bytes of part `part` of so many. */
export function partBytes(bytes: number, parts: number, part: number): number {
  return Math.floor(((part + 1) * bytes) / parts) - Math.floor((part * bytes) / parts);
}
