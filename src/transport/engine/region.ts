// A registered region: memory that messages are sent from and arrive in, and that peers may read or write with its key.

/** What a peer that holds the key may do. */
export interface RemoteAccess {
  readonly read: boolean;
  readonly write: boolean;
}

export interface Region {
  /** Its number in the engine; never used again for another region while 2^16 others come and go. */
  readonly id: number;
  /** What a peer must show to read or write the region. */
  readonly key: number;
  /** The memory itself. It belongs to the caller and must stay where it is until the region is released. */
  readonly bytes: Uint8Array;
  /** Native address of the first byte, for an I/O that passes references to the kernel; 0 where there is none. */
  readonly address: number;
  readonly remote: RemoteAccess;
}
