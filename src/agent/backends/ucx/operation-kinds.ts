// What the operations of a link are.

/** Of an operation. The last two are a channel's. */
export const operationKinds = { write: 1, read: 2, notify: 3, put: 4, signal: 5 } as const;
