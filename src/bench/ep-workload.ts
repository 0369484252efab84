// The tokens and routing that the expert-parallel bench moves; the same seed gives the same bytes on every machine.

/** Shape of the work; the defaults are the configuration that the field publishes numbers for. */
export const defaultEpWorkload = { ranks: 4, tokens: 4096, hidden: 7168, topk: 8, experts: 256 } as const;
