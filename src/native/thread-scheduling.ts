// How the kernel schedules a thread.
import { systemCall } from './system-call.ts';

const setSchedulerFunction = systemCall('int sched_setscheduler(int, int, void*)');

const SCHED_OTHER = 0;
const SCHED_BATCH = 3;

/**
 * The calling thread no longer interrupts others when it is woken; its share of the processors stays the same. Returns what
 * makes it an ordinary thread again. A kernel or sandbox that refuses leaves things as they are.
 */
export function useBatchScheduling(): () => void {
  setSchedulerFunction()(0, SCHED_BATCH, new Int32Array(1));
  return () => void setSchedulerFunction()(0, SCHED_OTHER, new Int32Array(1));
}
