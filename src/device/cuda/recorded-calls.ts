// What a graph does at each launch besides its nodes: objects whose calls it repeats check them, and count them.
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

/** While a graph is recorded: by object, those that have something to do at each launch. */
export type Recording = Map<object, RecordedCalls>;
