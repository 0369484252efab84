// What the agent's thread and the thread that copies for it tell each other.

export interface CopyWorkerData {
  /** Of `threadWord`. */
  readonly words: SharedArrayBuffer;
  /** Of the agent's WakeWord. */
  readonly wake: SharedArrayBuffer;
}

/** Sent before the bell is rung for what they speak of. */
export type CopyOrder =
  | {
      readonly do: 'open lane';
      readonly id: number;
      readonly words: Int32Array;
      /** Native address of the peer's mailbox, mapped until no job of the lane is queued any more; the sender's place in it. */
      readonly mailbox: number;
      readonly mailboxBytes: number;
      readonly slot: number;
    }
  | { readonly do: 'close lane'; readonly id: number }
  | {
      readonly do: 'make job';
      readonly id: number;
      readonly words: Int32Array;
      readonly table: SharedArrayBuffer;
      readonly message: Uint8Array;
      /** Of RegionGrants. */
      readonly grants: SharedArrayBuffer;
    }
  | { readonly do: 'forget job'; readonly id: number };
