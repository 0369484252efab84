// Runs a program of the system and returns what it printed; a failure is an error with its last words.
import { spawnSync } from 'node:child_process';

const MAX_OUTPUT = 2 ** 28;

export function run(program, words, options = {}) {
  const { status, error, stdout, stderr } = spawnSync(program, words, {
    encoding: 'utf8',
    maxBuffer: MAX_OUTPUT,
    ...options,
  });
  if (error !== undefined) throw new Error(`Cannot run ${program}: ${error.message}`);
  if (status !== 0) {
    const said = String(stderr).trim().split('\n').slice(-5).join('\n');
    throw new Error(`"${program} ${words.join(' ')}" ended with ${status}: ${said}`);
  }
  return stdout;
}
