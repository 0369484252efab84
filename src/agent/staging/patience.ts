// Waits of a staging thread for what its own loop brings about: with a deadline, looking again and again.
import type { Deadline } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';

const LOOK_MS = 1;
const EAGER_TURNS = 64;

/** Fails with WL_TIMEOUT, or with what `isSo` throws. */
export async function untilTrue(isSo: () => boolean, deadline: Deadline, what: string): Promise<void> {
  for (let turn = 0; !isSo(); turn++) {
    if (deadline.isOver) {
      const { timeoutMs } = deadline;
      throw new WeftlineError('WL_TIMEOUT', `${what} did not end within ${timeoutMs} ms`, { details: { timeoutMs } });
    }
    await new Promise((resolve) => (turn < EAGER_TURNS ? setImmediate(resolve) : setTimeout(resolve, LOOK_MS)));
  }
}

/** Has it done as soon as there is room. Fails with WL_TIMEOUT, or what `attempt` throws but WL_BUSY. */
export async function patiently(attempt: () => void, deadline: Deadline, what: string): Promise<void> {
  const isDone = (): boolean => {
    try {
      attempt();
      return true;
    } catch (error) {
      if (error instanceof WeftlineError && error.code === 'WL_BUSY') return false;
      throw error;
    }
  };
  await untilTrue(isDone, deadline, what);
}
