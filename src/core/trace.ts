// The places where time goes, by name. They do nothing yet: what measures them goes in here, and nowhere else.
//
// The functions are empty, so the JavaScript engine's compiler removes the calls. The macros of
// kernels/cuda/include/weftline/trace.cuh are the same for kernels.

/**
 * - ep.dispatch.counts: from the choices of all ranks to the plan of who receives what; the ranks meet in it
 * - ep.dispatch.rows, ep.combine.rows: rows move, by this thread
 * - ep.closing: from the last row to the meeting of the ranks behind it
 * - ep.launch: from the first argument of a kernel to its launch
 * - layer.…: the same of the layer; places: the check of rows that the caller chose; duplicates: rows of one token at one
 *   rank, copied by a dispatch or summed by a combine
 * - agent.post: handing a transfer to its backend; agent.transfer: from there until its end was noticed
 * - transport.burst: making and sending packets of one connection
 * - device-api.serve: one round over a command queue
 */
export type TracePoint =
  | 'ep.dispatch.counts'
  | 'ep.dispatch.rows'
  | 'ep.combine.rows'
  | 'ep.closing'
  | 'ep.launch'
  | 'layer.dispatch.counts'
  | 'layer.dispatch.places'
  | 'layer.dispatch.rows'
  | 'layer.dispatch.duplicates'
  | 'layer.combine.duplicates'
  | 'layer.combine.rows'
  | 'layer.closing'
  | 'layer.launch'
  | 'agent.post'
  | 'agent.transfer'
  | 'transport.burst'
  | 'device-api.serve';

/** Hot path. `subject` tells apart what runs at once: the number of a transfer, of a connection. */
export function traceBegin(_point: TracePoint, _subject = 0): void {}

/** Hot path. The end of what the same point and subject began on this thread; it does not come if what they are around fails. */
export function traceEnd(_point: TracePoint, _subject = 0): void {}
