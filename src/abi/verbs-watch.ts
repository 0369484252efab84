// Words that the agent's thread and the thread that watches its RDMA device share.

/** `stop`: written by the agent's thread. `events`: 1 from when the device has events until they were taken; by both. */
export const verbsWatchWords = { stop: 0, events: 1 } as const;
export const VERBS_WATCH_WORDS = 2;
