// Finds the processes that a job left behind outside of its process groups, by a mark in their environment.
import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

/** Kills them and looks again until none is left. Linux only; elsewhere only process groups are ended. */
export async function endMarkedProcesses(mark: string): Promise<void> {
  for (let pause = 1; pause < 500; pause *= 2) {
    const pids = processes().filter((pid) => pid !== process.pid && hasMark(pid, mark));
    if (pids.length === 0) return;
    for (const pid of pids) kill(pid);
    await sleep(pause);
  }
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // It ended meanwhile.
  }
}

function processes(): number[] {
  try {
    return readdirSync('/proc')
      .map(Number)
      .filter((pid) => Number.isInteger(pid) && pid > 0);
  } catch {
    return [];
  }
}

function hasMark(pid: number, mark: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'latin1').includes(mark);
  } catch {
    // Another user's, or it ended meanwhile.
    return false;
  }
}
