// Words that the agent's thread and the thread that watches its RDMA device share.

/**
 * `stop`: written by the agent's thread. `events`: 1 from when the device has events until they were taken; by both.
 * `isTaken`: 1 from when the thread has taken descriptors of completions out of its set until they are in it again.
 */
export const rdmaWatchWords = { stop: 0, events: 1, isTaken: 2 } as const;
export const RDMA_WATCH_WORDS = 3;
