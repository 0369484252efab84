// What members of a job can be asked through its store.

/** What a rank waits for and where its objects stand, or its metrics. */
export type Question = 'state' | 'metrics';

/** Who asks: one and the same object each time, and what takes the answers to it. */
export interface Asker {
  readonly asker: object;
  readonly send: (header: Readonly<Record<string, unknown>>, parts: readonly Uint8Array[]) => void;
}

export function isQuestion(value: unknown): value is Question {
  return value === 'state' || value === 'metrics';
}
