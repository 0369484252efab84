// Work that was recorded once and is enqueued again by one call of the driver: a CUDA graph.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { Out } from '../../native/library.ts';
import { type CudaContext, OwnedResource } from './cuda-context.ts';
import { CudaStream } from './cuda-stream.ts';
import type { KeptMemory } from './memory-pool.ts';

// What a graph does at each launch besides its nodes: objects whose calls it repeats check them, and count them.

/** The calls of one object in one recording. */
export interface RecordedCalls {
  /** The recording has ended, whether or not there is a graph. */
  endRecording(): void;
  /** Fails if the object cannot make these calls now; changes nothing. */
  requireReady(): void;
  /** Called before the launch is enqueued on the stream. */
  beginLaunch(stream: CudaStream): void;
  /** Called after that. */
  endLaunch(): void;
  /** The graph is gone, or none was made; called once. */
  release(): void;
}

/** Recorded calls, by object, that have something to do at each launch. */
type Recording = Map<object, RecordedCalls>;

const recordings = new WeakMap<CudaContext, Recording>();

/** Begins with an empty recording, or ends it with undefined. `hold`: see CudaContext. */
function setRecording(context: CudaContext, recording: Recording | undefined, hold?: (address: number) => void): void {
  context.isCapturing = recording !== undefined;
  context.holdRecorded = hold;
  if (recording === undefined) recordings.delete(context);
  else recordings.set(context, recording);
}

/** Hot path. What is recorded now; undefined if nothing is. */
export function recordingOf(context: CudaContext): Recording | undefined {
  return context.isCapturing ? recordings.get(context) : undefined;
}

/** CUstreamCaptureMode: only what touches the recorded streams is part of it; fences of other work may be looked at. */
const RELAXED = 2;

interface GraphParts {
  /** CUgraphExec. */
  readonly handle: number;
  readonly memory: KeptMemory;
  readonly calls: readonly RecordedCalls[];
}

/**
 * Made by device.capture(). The memory of tensors that were taken while it was recorded, and of those that its calls name, stays
 * its own until it is closed, whatever becomes of the tensors. Launches that still run end before close() takes effect.
 */
export class CudaGraph extends OwnedResource {
  /** CUgraphExec. */
  readonly #handle: number;
  readonly #stream: CudaStream;
  readonly #memory: KeptMemory;
  readonly #calls: readonly RecordedCalls[];

  /** @internal Use device.capture(). */
  constructor(stream: CudaStream, { handle, memory, calls }: GraphParts) {
    super(stream.context);
    this.#handle = handle;
    this.#stream = stream;
    this.#memory = memory;
    this.#calls = calls;
    this.context.own(this);
  }

  /**
   * Enqueues all that was recorded; returns before it has run. It reads and writes the tensors of the calls that were
   * recorded. What fails on the device shows as it does for direct calls, in the next wait. On one stream at a time, of the
   * device that has recorded it. Fails with WL_CLOSED after close(), and where an object whose calls it repeats (an
   * EpLowLatency, buffer, layer or Communicator) could not be called now: with the error that such a call would have.
   */
  launch(stream: CudaStream = this.#stream): void {
    const { context } = this;
    if (this.disposed) throw new WeftlineError('WL_CLOSED', 'Cannot launch the graph: it was closed');
    if (!(stream instanceof CudaStream) || stream.context !== context) {
      throw invalidArgument('stream', stream, `a CudaStream of GPU ${context.ordinal}, which has recorded the graph`);
    }
    if (stream.disposed) throw new WeftlineError('WL_CLOSED', 'Cannot launch the graph: the stream was closed');
    context.refuseCapture('the launch of a graph');
    for (const calls of this.#calls) calls.requireReady();
    for (const calls of this.#calls) calls.beginLaunch(stream);
    context.lastLaunch = 'a graph';
    context.workCount += 1;
    context.call('cuGraphLaunch', this.#handle, stream.handle);
    for (const calls of this.#calls) calls.endLaunch();
  }

  /** @internal */
  override release(): void {
    this.context.release('cuGraphExecDestroy', this.#handle);
    this.#memory.release();
    for (const calls of this.#calls) calls.release();
  }
}

/** Runs `record`, and makes a graph of what it enqueued on the stream and on those that wait for it. */
export async function captureGraph(
  stream: CudaStream,
  keepMemory: () => KeptMemory,
  record: () => Promise<void> | void,
): Promise<CudaGraph> {
  const { context } = stream;
  if (typeof record !== 'function') throw invalidArgument('record', record, 'a function that enqueues work');
  context.refuseCapture('another capture');
  context.refuseHostCalls();
  context.call('cuStreamBeginCapture', stream.handle, RELAXED);
  const recording: Recording = new Map();
  const memory = keepMemory();
  setRecording(context, recording, (address) => memory.hold(address));
  const graph: Out = [0];
  const executable: Out = [0];
  let status = 0;
  try {
    try {
      await record();
    } finally {
      setRecording(context, undefined);
      memory.end();
      // The capture ends also where the recording has failed: the stream must work again. The first error is the one to tell.
      status = context.status('cuStreamEndCapture', stream.handle, graph);
      for (const calls of recording.values()) calls.endRecording();
    }
    context.check('cuStreamEndCapture', status, 'recording a graph');
    context.call('cuGraphInstantiateWithFlags', executable, graph[0], 0);
    return new CudaGraph(stream, { handle: executable[0], memory, calls: [...recording.values()] });
  } catch (error) {
    memory.release();
    for (const calls of recording.values()) calls.release();
    throw error;
  } finally {
    if (graph[0] !== 0) context.release('cuGraphDestroy', graph[0]);
  }
}
