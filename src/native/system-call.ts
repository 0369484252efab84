// Functions of the C library that report failures by errno, bound so that a failed call returns the negative errno itself.
import { bindGuarded, declareFunction, linuxLibrary, loadKoffi, type NativeFunction, openLibrary } from './library.ts';

/** A function in place of the real one, which it may call; both return a result or a negative errno. */
type Substitute = (real: NativeFunction) => (...parameters: never[]) => unknown;

const substitutes = new Map<string, Substitute>();

/** Replaces the function `name` in this thread, for tests of rare failures. Must be called before its first use. */
export function substituteSystemCall(name: string, substitute: Substitute): void {
  substitutes.set(name, substitute);
}

/**
 * Binds one prototype of the C library when it is first called, or by bindDeclaredFunctions(). The function returns what
 * C does, but -errno in place of -1, as the kernel does itself.
 */
export function systemCall(text: string): () => NativeFunction {
  return declareFunction(() => bind(text));
}

/** The same on a thread of the pool, so that the event loop goes on. */
export function pooledSystemCall(text: string): (...parameters: unknown[]) => Promise<number> {
  let bound: ((...parameters: unknown[]) => Promise<number>) | undefined;
  return (...parameters) => (bound ??= bindPooled(text))(...parameters);
}

function bind(text: string): NativeFunction {
  return substituted(text, withErrno(openLibrary(linuxLibrary).func(text), -1));
}

/** The function returns -errno in place of `failure`, by which the native one tells that it failed. */
export function withErrno(call: NativeFunction, failure: number): NativeFunction {
  const errno = locateErrno();
  const checked = (...parameters: unknown[]): unknown => {
    // INVARIANT: nothing is called or allocated between these two lines. V8 makes system calls of its own when it is
    // entered, to collect garbage for example, and those set errno too; a second native call to ask for it is too late.
    const result: unknown = call(...parameters);
    return result === failure ? -errno[0]! : result;
  };
  return checked as NativeFunction;
}

function bindPooled(text: string): (...parameters: unknown[]) => Promise<number> {
  const call = openLibrary(linuxLibrary).func(text);
  const errno = locateErrno();
  const pooled = (...parameters: unknown[]): Promise<number> =>
    new Promise((resolve) => {
      // koffi sets this thread's errno to that of the pool's thread just before the callback.
      const settle = (_error: unknown, result: number): void => resolve(result === -1 ? -errno[0]! : result);
      call.async(...parameters, settle);
    });
  return substituted(text, pooled as NativeFunction) as typeof pooled;
}

function substituted(text: string, real: NativeFunction): NativeFunction {
  const name = /(\w+)\(/.exec(text)?.[1] ?? text;
  return (substitutes.get(name)?.(real) ?? real) as NativeFunction;
}

let errnoWord: Int32Array | undefined;

/** The place where the C library keeps the errno of this thread. A module is run by one thread for its whole life. */
function locateErrno(): Int32Array {
  if (errnoWord === undefined) {
    const address: number = bindGuarded(() => openLibrary(linuxLibrary).func('intptr_t __errno_location()'))();
    errnoWord = new Int32Array(loadKoffi().view(BigInt(address), 4));
  }
  return errnoWord;
}
