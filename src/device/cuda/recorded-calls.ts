// What a graph does at each launch besides its nodes: objects whose calls it repeats check them, and count them.
import type { CudaContext } from './cuda-context.ts';
import type { CudaStream } from './cuda-stream.ts';

/** The calls of one object in one recording. */
export interface RecordedCalls {
  /** The recording has ended, whether or not there is a graph. */
  endRecording(): void;
  /** Fails if the object cannot make these calls now; changes nothing. */
  requireReady(): void;
  /** Before the launch is enqueued on the stream. */
  beginLaunch(stream: CudaStream): void;
  /** After that. */
  endLaunch(): void;
}

/** By object, those that have something to do at each launch. */
export type Recording = Map<object, RecordedCalls>;

const recordings = new WeakMap<CudaContext, Recording>();

/** Begins with an empty recording, or ends it with undefined. `hold`: see CudaContext. */
export function setRecording(
  context: CudaContext,
  recording: Recording | undefined,
  hold?: (address: number) => void,
): void {
  context.isCapturing = recording !== undefined;
  context.holdRecorded = hold;
  if (recording === undefined) recordings.delete(context);
  else recordings.set(context, recording);
}

/** Hot path. What is recorded now; undefined if nothing is. */
export function recordingOf(context: CudaContext): Recording | undefined {
  return context.isCapturing ? recordings.get(context) : undefined;
}
