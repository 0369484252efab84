// What objects of expert parallelism take of memory, as far as all of them say it in the same way.

/** What an object takes, in bytes of each rank. */
export interface MemorySize {
  /** Bytes of one rank's window. */
  readonly bytes: number;
  /**
   * Address space that each CPU rank of the host with most ranks takes: all windows of its host and their headers, and its
   * network side. An EpBuffer has tables besides, some bytes per token and rank, and where all ranks are on one host up to 1 MiB
   * in which combine reads their rows.
   */
  readonly addressSpaceBytes: number;
  /** Bytes of /dev/shm on that host, for all its ranks together; 0 for one rank alone. */
  readonly sharedMemoryBytes: number;
}
