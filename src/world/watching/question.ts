// What members of a job can be asked through its store.

/** What a rank waits for and where its objects stand, or its metrics. */
export type Question = 'state' | 'metrics';

export function isQuestion(value: unknown): value is Question {
  return value === 'state' || value === 'metrics';
}
