// What every rank of ranks/ep-context.js must find, on either kind of device.

export const contextFindings = {
  first: 4,
  kept: 4,
  // 1.25 times what is needed is rounded up to 1024, but no more rows can ever arrive.
  grown: 32,
  shapes: [[32, 16], [32]],
  stale: 'WL_CLOSED',
  tooMany: 'WL_INVALID_ARGUMENT',
  layerRows: 8,
  layerOutput: [1, 2, 3, 4, 1, 2, 3, 4],
  finalized: 'WL_CLOSED',
  left: 0,
};
