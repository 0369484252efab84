// The places where time goes, by name. What measures them goes in here, and nowhere else: benchmarks and traces add sinks.
//
// Without one, a call is the look at a variable. The macros of kernels/cuda/include/weftline/trace.cuh are the same for
// kernels; they do something only in kernels that were compiled for a trace (device/cuda/kernel-trace.ts).

/**
 * - call: a collective call of an object, from its begin to its end for this thread; subject is its number among the object's
 *   calls, label the object and the call
 * - ep.dispatch.counts: from the choices of all ranks to the plan of who receives what; the ranks meet in it
 * - ep.dispatch.rows, ep.combine.rows: rows move, by this thread
 * - ep.dispatch.network, ep.combine.network: of a rank with peers on other hosts, of buffers and layers alike: from the
 *   first row that is queued or summed until nothing is under way; the parts of it that this thread works:
 *   ep.dispatch.queue: what goes to other hosts is packed and queued; ep.dispatch.local: rows move within the host;
 *   ep.dispatch.forward: rows from other hosts go to their other places; ep.combine.host-sums: sums for other hosts;
 *   ep.combine.own-sums: sums of this rank's own tokens
 * - ep.closing: from the last row to the meeting of the ranks behind it
 * - ep.launch: from the first argument of a kernel to its launch
 * - layer.…: the same of the layer; places: the check of rows that the caller chose; duplicates: rows of one token at one
 *   rank, copied by a dispatch or summed by a combine
 * - agent.post: handing a transfer to its backend; agent.transfer: from there until its end was noticed; label is operation
 *   and backend
 * - staging.transfer: a transfer of memory of a GPU between hosts, on the staging thread; subject is its number. Of each of
 *   its pieces, subject is the slot: staging.copy-out: from the begin of its copy to pinned memory until it was posted;
 *   staging.carry: from there until it has come back; staging.land: the copy of what came back of a read. On the
 *   receiver's staging thread: staging.copy-in: from the sight of a piece to the end of its copy and answer
 * - transport.burst: making and sending packets of one connection
 * - transport.send: the last packet of a message, a signal or the answer to a read was made; transport.arrival: it has come
 *   to the peer as a whole. Moments, of which the same label and subject name both
 * - device-api.serve: one round over a command queue
 * - kernel: a block of a kernel, from its begin to its end; kernel.wait: a thread of it waits for another rank, or for other blocks
 */
export const tracePoints = [
  'call',
  'ep.dispatch.counts',
  'ep.dispatch.rows',
  'ep.combine.rows',
  'ep.dispatch.network',
  'ep.dispatch.queue',
  'ep.dispatch.local',
  'ep.dispatch.forward',
  'ep.combine.network',
  'ep.combine.host-sums',
  'ep.combine.own-sums',
  'ep.closing',
  'ep.launch',
  'layer.dispatch.counts',
  'layer.dispatch.places',
  'layer.dispatch.rows',
  'layer.dispatch.duplicates',
  'layer.combine.duplicates',
  'layer.combine.rows',
  'layer.closing',
  'layer.launch',
  'agent.post',
  'agent.transfer',
  'staging.transfer',
  'staging.copy-out',
  'staging.carry',
  'staging.land',
  'staging.copy-in',
  'transport.burst',
  'transport.send',
  'transport.arrival',
  'device-api.serve',
  'kernel',
  'kernel.wait',
] as const;

export type TracePoint = (typeof tracePoints)[number];

/** What is told of the points of this thread. Must not fail. */
export interface TraceSink {
  begin(point: TracePoint, subject: number, label?: string): void;
  /** `bytes`: what the call or the transfer carried for this rank; 0 where that is not known. */
  end(point: TracePoint, subject: number, label?: string, bytes?: number): void;
}

const sinks = new Set<TraceSink>();
let sink: TraceSink | undefined;

/** This thread's points are told to that sink too from now on. Returns how to take it back. */
export function addTraceSink(added: TraceSink): () => void {
  sinks.add(added);
  chooseSink();
  return () => {
    sinks.delete(added);
    chooseSink();
  };
}

function chooseSink(): void {
  const all = [...sinks];
  if (all.length < 2) [sink] = all;
  else {
    sink = {
      begin: (point, subject, label) => all.forEach((each) => each.begin(point, subject, label)),
      end: (point, subject, label, bytes) => all.forEach((each) => each.end(point, subject, label, bytes)),
    };
  }
}

/** Runs work that no caller has asked for: no sink is told of this thread's points until it has ended. */
export async function withoutTrace<T>(work: () => Promise<T>): Promise<T> {
  sink = undefined;
  try {
    return await work();
  } finally {
    chooseSink();
  }
}

/** Hot path. Whether anybody is told of this thread's points: for labels that cost something to find. */
export function isTraced(): boolean {
  return sink !== undefined;
}

/** Hot path. `subject` tells apart what runs at once: the number of a transfer, of a connection. `label` says what it is. */
export function traceBegin(point: TracePoint, subject = 0, label?: string): void {
  if (sink !== undefined) sink.begin(point, subject, label);
}

/** Hot path. The end of what the same three began on this thread; it does not come if what they are around fails. */
export function traceEnd(point: TracePoint, subject = 0, label?: string, bytes = 0): void {
  if (sink !== undefined) sink.end(point, subject, label, bytes);
}
