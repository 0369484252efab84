// Calls from a process that is soaked to the other one of its pair.
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { decodeError, encodeError, type EncodedError } from '#lib/core/errors.js';

interface Call {
  readonly id: number;
  readonly name: string;
  readonly argument: unknown;
}

interface Answer {
  readonly id: number;
  readonly result?: unknown;
  readonly error?: EncodedError;
}

export class PeerProcess {
  readonly #child: ChildProcess;
  readonly #open = new Map<
    number,
    { readonly resolve: (result: unknown) => void; readonly reject: (error: Error) => void }
  >();
  #next = 0;

  constructor(script: string, words: readonly string[]) {
    this.#child = fork(script, words, { execArgv: ['--expose-gc'], serialization: 'advanced' });
    this.#child.on('message', ({ id, result, error }: Answer) => {
      const call = this.#open.get(id);
      this.#open.delete(id);
      if (error === undefined) call?.resolve(result);
      else call?.reject(decodeError(error));
    });
    this.#child.once('exit', (code, signal) => {
      for (const { reject } of this.#open.values()) reject(new Error(`the peer ended with ${signal ?? code}`));
    });
  }

  call<T>(name: string, argument?: unknown): Promise<T> {
    const id = this.#next++;
    return new Promise<T>((resolve, reject) => {
      this.#open.set(id, { resolve: resolve as (result: unknown) => void, reject });
      this.#child.send({ id, name, argument } satisfies Call);
    });
  }

  async end(): Promise<void> {
    this.#child.disconnect();
    if (this.#child.exitCode === null && this.#child.signalCode === null) await once(this.#child, 'exit');
  }
}

/** The other side: answers calls until the channel ends. */
export function serve(calls: Readonly<Record<string, (argument: never) => unknown>>): void {
  const answer = async ({ id, name, argument }: Call): Promise<Answer> => {
    try {
      return { id, result: await (calls[name] as (argument: unknown) => unknown)(argument) };
    } catch (error) {
      return { id, error: encodeError(error) };
    }
  };
  process.on('message', (call: Call) => void answer(call).then((words) => process.send?.(words)));
  process.on('disconnect', () => process.exit(0));
}
