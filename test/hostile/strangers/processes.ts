// Starts the processes of the strangers' kit: the host of all listeners, and callers, also those of another user.
import assert from 'node:assert/strict';
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { Attempt, AttemptOutcome } from './caller.ts';
import type { Target } from './targets.ts';
import { decodeError, type EncodedError } from '#lib/core/errors.js';

/** Nobody. */
export const OTHER_USER = 65_534;

function start(name: string, words: readonly string[], uid?: number): ChildProcess {
  const { WEFTLINE_TOKEN: _token, NODE_TEST_CONTEXT: _context, ...env } = process.env;
  const as = uid === undefined ? {} : { uid, gid: uid };
  const script = fileURLToPath(new URL(`./${name}.js`, import.meta.url));
  return fork(script, words, { env, execArgv: [], serialization: 'advanced', ...as });
}

export class Host implements Disposable {
  readonly process: ChildProcess;
  readonly targets: readonly Target[];

  static async start(token: string): Promise<Host> {
    const child = start('host', [token]);
    const [words] = (await once(child, 'message')) as [{ targets?: readonly Target[]; error?: EncodedError }];
    if (words.error === undefined) return new Host(child, words.targets ?? []);
    child.kill('SIGKILL');
    throw decodeError(words.error);
  }

  private constructor(child: ChildProcess, targets: readonly Target[]) {
    this.process = child;
    this.targets = targets;
  }

  get isAlive(): boolean {
    return this.process.exitCode === null && this.process.signalCode === null;
  }

  [Symbol.dispose](): void {
    this.process.kill('SIGKILL');
  }
}

export class Caller implements Disposable {
  readonly #process: ChildProcess;

  /** Undefined if that user cannot run this code here. */
  static async start(uid?: number): Promise<Caller | undefined> {
    const child = start('caller', [], uid);
    const ready = await Promise.race([once(child, 'message'), once(child, 'exit').then(() => undefined)]);
    return ready === undefined ? undefined : new Caller(child);
  }

  private constructor(child: ChildProcess) {
    this.#process = child;
  }

  async attempt(attempt: Attempt): Promise<AttemptOutcome> {
    const settled = new AbortController();
    const { signal } = settled;
    const answer = once(this.#process, 'message', { signal });
    const lost = once(this.#process, 'exit', { signal }).then(() => assert.fail('the caller ended'));
    for (const end of [answer, lost]) end.catch(() => {});
    this.#process.send(attempt);
    const [outcome] = (await Promise.race([answer, lost])) as [AttemptOutcome];
    settled.abort();
    return outcome;
  }

  [Symbol.dispose](): void {
    this.#process.kill('SIGKILL');
  }
}
