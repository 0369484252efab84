// What a burst's headers are written from.

/** What the headers of a burst have in common, and their first values. One object per engine. */
export interface DataTemplate {
  count: number;
  flags: number;
  /** Flags of the last packet besides. */
  lastFlags: number;
  path: number;
  sequence: number;
  pathSequence: number;
  target: number;
  targetKey: number;
  offset: number;
  messageBytes: number;
  base: number;
  payloadBytes: number;
  lastPayloadBytes: number;
}

export function createDataTemplate(): DataTemplate {
  return {
    count: 0,
    flags: 0,
    lastFlags: 0,
    path: 0,
    sequence: 0,
    pathSequence: 0,
    target: 0,
    targetKey: 0,
    offset: 0,
    messageBytes: 0,
    base: 0,
    payloadBytes: 0,
    lastPayloadBytes: 0,
  };
}
