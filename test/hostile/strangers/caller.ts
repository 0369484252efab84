// A process that tries to reach listeners, honestly or not. Answers each message with how its call ended.
import { reach, type Target } from './targets.ts';
import { encodeError } from '#lib/core/errors.js';

export interface Attempt {
  readonly target: Target;
  readonly token: string;
  readonly number: number;
}

export interface AttemptOutcome {
  /** "reached", or the code of the error. */
  readonly code: string;
  readonly message: string;
  readonly ms: number;
}

process.on('message', (attempt: Attempt) => void run(attempt).then((outcome) => process.send?.(outcome)));
process.on('disconnect', () => process.exit(0));
process.send?.('ready');

async function run({ target, token, number }: Attempt): Promise<AttemptOutcome> {
  const start = performance.now();
  try {
    await reach(target, token, number);
    return { code: 'reached', message: '', ms: performance.now() - start };
  } catch (error) {
    const { code, message } = encodeError(error);
    return { code, message, ms: performance.now() - start };
  }
}
