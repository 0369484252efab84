// Opens shared libraries and binds their functions at first call. The only folder that imports koffi.
import { createRequire } from 'node:module';
import { getEnvironmentData, isMainThread, setEnvironmentData, threadId, type Worker } from 'node:worker_threads';
import type * as Koffi from 'koffi';
import { WeftlineError } from '../core/errors.ts';
import { packageFile } from '../core/package-file.ts';

// Keeps threads from binding native functions while the process ends: koffi aborts the process then.

/**
 * Key of `setEnvironmentData`: words shared by all threads that are started after the main thread has loaded this module. Other
 * threads are not guarded. A change of what the words mean gets another number.
 */
const SHARED_WORDS = 'weftline-binding-threads/1';
/** The first word is 1 when the process ends. Each of the others is 1 while a thread binds; threads share them by their id. */
const WORDS = 1024;
/** Binding takes milliseconds. */
const LONGEST_WAIT_MS = 1000;

if (isMainThread && getEnvironmentData(SHARED_WORDS) === undefined) {
  const words = new Int32Array(new SharedArrayBuffer(4 * WORDS));
  setEnvironmentData(SHARED_WORDS, words);
  process.on('exit', () => awaitThreads(words));
}

/** Clears the word of a thread when it has ended, since it may have been stopped while it was binding. */
export function guardWorker(worker: Worker): void {
  const words = sharedWords();
  if (words === undefined) return;
  const at = wordOf(worker.threadId);
  worker.once('exit', () => Atomics.store(words, at, 0));
}

/** This thread is within bindGuarded(). */
let isBinding = false;

/** Loads or binds what is native. While the process ends, a thread does not return from it: it is about to be stopped. */
export function bindGuarded<T>(bind: () => T): T {
  const words = isMainThread || isBinding ? undefined : sharedWords();
  if (words === undefined) return bind();
  const at = wordOf(threadId);
  // ORDER: the thread tells before it looks; the process tells that it ends before it looks at the threads.
  Atomics.add(words, at, 1);
  if (Atomics.load(words, 0) !== 0) {
    release(words, at);
    for (;;) Atomics.wait(words, 0, 1, LONGEST_WAIT_MS);
  }
  isBinding = true;
  try {
    return bind();
  } finally {
    isBinding = false;
    release(words, at);
  }
}

function sharedWords(): Int32Array | undefined {
  return getEnvironmentData(SHARED_WORDS) as Int32Array | undefined;
}

function wordOf(thread: number): number {
  return 1 + (thread % (WORDS - 1));
}

function release(words: Int32Array, at: number): void {
  Atomics.sub(words, at, 1);
  Atomics.notify(words, at);
}

/** When the process ends: until no thread is binding. */
function awaitThreads(words: Int32Array): void {
  Atomics.store(words, 0, 1);
  const deadline = performance.now() + LONGEST_WAIT_MS;
  for (let at = 1; at < WORDS; at++) {
    for (let seen = Atomics.load(words, at); seen > 0; seen = Atomics.load(words, at)) {
      const left = deadline - performance.now();
      if (left <= 0 || Atomics.wait(words, at, seen, left) === 'timed-out') return;
    }
  }
}

// Memory of this process that does not move: the kernel is given its address once, TypeScript reads and writes it.

export class NativeBlock {
  readonly bytes: Uint8Array;
  readonly words: Uint32Array;
  readonly address: number;

  /** Zeroed; lives as long as this object is referenced. An address in the kernel's or in native hands is no reference. */
  constructor(byteLength: number) {
    // Shared memory is never moved or paged out by the collector. It begins at a multiple of 16 bytes only.
    const buffer = new SharedArrayBuffer(Math.ceil(byteLength / 8) * 8 + 64);
    const start = (64 - (Number(addressOf(new Uint8Array(buffer))) % 64)) % 64;
    this.bytes = new Uint8Array(buffer, start, byteLength);
    this.words = new Uint32Array(buffer, start, Math.ceil(byteLength / 4));
    this.address = Number(addressOf(this.bytes));
  }
}

type KoffiModule = typeof Koffi;
/** koffi's declared functions take what their prototype says; the wrappers beside each declaration give them types. */
export type NativeFunction = ReturnType<Koffi.LibraryHandle['func']>;

let koffi: KoffiModule | undefined;

/** koffi itself, loaded at first use so that importing weftline loads nothing native. */
export function loadKoffi(): KoffiModule {
  if (koffi === undefined) {
    const here = packageFile('./library.js', import.meta.url);
    try {
      koffi = bindGuarded(() => createRequire(here)('koffi') as KoffiModule);
    } catch (cause) {
      throw new WeftlineError(
        'WL_UNSUPPORTED',
        `Cannot load koffi, which calls native functions, on ${process.platform}-${process.arch}: reinstall with "npm ci" and without "--omit=optional"`,
        { cause },
      );
    }
  }
  return koffi;
}

/** Name that stands for what is loaded in this process anyway. */
const ownProcess = null;

/**
 * Every Linux process has its C library loaded, whose file has other names elsewhere (libc.so.6, ld-musl-x86_64.so.1).
 * Other systems have functions of these names too, but not with these numbers: there the file is missing, and the error says so.
 */
export const linuxLibrary: string | null = process.platform === 'linux' ? ownProcess : 'libc.so.6';

const libraries = new Map<string | null, Koffi.LibraryHandle>();

/** Opens a shared library once per process. Fails with WL_UNSUPPORTED naming the library. */
export function openLibrary(name: string | null): Koffi.LibraryHandle {
  let library = libraries.get(name);
  if (library === undefined) {
    const loader = loadKoffi();
    try {
      library = bindGuarded(() => loader.load(name));
    } catch (cause) {
      throw new WeftlineError('WL_UNSUPPORTED', `Cannot open the shared library ${name ?? 'of this process'}`, {
        details: { name },
        cause,
      });
    }
    libraries.set(name, library);
  }
  return library;
}

/** Functions of the C library that this thread's modules have declared. */
const declared: (() => NativeFunction)[] = [];

/** Binds one C prototype when it is first called; those of the C library may be bound earlier, by bindDeclaredFunctions(). */
export function lazyFunction(libraryName: string | null, text: string): () => NativeFunction {
  const bind = (): NativeFunction => openLibrary(libraryName).func(text);
  return libraryName === linuxLibrary ? declareFunction(bind) : onFirstCall(bind);
}

/** Binds a function of the C library when it is first called, or by bindDeclaredFunctions(). */
export function declareFunction(bind: () => NativeFunction): () => NativeFunction {
  const get = onFirstCall(bind);
  declared.push(get);
  return get;
}

/**
 * Binds the functions of the C library that the modules imported so far have declared. Threads call it before they begin
 * to work, so that they need not stop for it later; functions of other libraries are bound at their first call.
 */
export function bindDeclaredFunctions(): void {
  bindGuarded(() => {
    for (const get of declared) {
      try {
        get();
      } catch {
        // The first call of a function that the system lacks reports it.
      }
    }
  });
}

function onFirstCall(bind: () => NativeFunction): () => NativeFunction {
  let bound: NativeFunction | undefined;
  return () => (bound ??= bindGuarded(bind));
}

/** The address of the first byte of a view; the view's memory must not move (shared or mapped memory does not). */
export function addressOf(view: ArrayBufferView): bigint {
  return loadKoffi().address(view);
}

/** Memory at a native address as a buffer in place, at most 4 GiB; the memory must outlive every view of it. */
export function viewAt(address: number, bytes: number): ArrayBuffer {
  return loadKoffi().view(BigInt(address), bytes);
}

/** What a call does to the numbers it is given to fill. */
export type Out = [number];

/** A text that a call fills in. */
type OutText = [string | null];

/** Structures that calls take by value, by their C name. */
interface ByValue {
  CUipcMemHandle: { readonly reserved: Uint8Array };
  ncclUniqueId: { readonly internal: Uint8Array };
}

/** What a call is given for a parameter of a C prototype, as "_Out_ int* value" or "size_t bytes". */
type Argument<Parameter extends string> = Parameter extends `_Out_ const char** ${string}`
  ? OutText
  : Parameter extends `_Out_ ${string}`
    ? Out
    : Parameter extends `const char** ${string}`
      ? readonly string[]
      : Parameter extends `const char* ${string}`
        ? string
        : Parameter extends `void* ${string}`
          ? Uint8Array
          : Parameter extends `${string}* ${string}`
            ? readonly [number]
            : Parameter extends `${infer Type extends keyof ByValue} ${string}`
              ? ByValue[Type]
              : number;

type Arguments<List extends string> = List extends ''
  ? []
  : List extends `${infer First}, ${infer Rest}`
    ? [Argument<First>, ...Arguments<Rest>]
    : [Argument<List>];

type ArgumentsOf<Prototype extends string> = Prototype extends `${string}(${infer List})` ? Arguments<List> : never;

/** C prototypes of one library by the name of the call, each parameter with its type and name. */
type Prototypes = Readonly<Record<string, string>>;

/** Functions of one library that all return a status number. */
export type StatusCalls<Table extends Prototypes> = {
  [Name in keyof Table]: (...parameters: ArgumentsOf<Table[Name]>) => number;
};

/**
 * Binds each function at its first call, after which the property is the native function itself, or what `wrap` makes of
 * it. A call of a function that the library lacks fails with WL_UNSUPPORTED.
 */
export function bindLazily<const Table extends Prototypes>(
  libraryName: () => string,
  table: Table,
  wrap: (call: NativeFunction, name: string) => NativeFunction = (call) => call,
): StatusCalls<Table> {
  const calls: Record<string, NativeFunction> = {};
  for (const [name, text] of Object.entries(table)) {
    calls[name] = ((...parameters: unknown[]) => {
      const bound = wrap(bindOne(libraryName(), name, text), name);
      calls[name] = bound;
      return bound(...parameters) as unknown;
    }) as NativeFunction;
  }
  return calls as unknown as StatusCalls<Table>;
}

function bindOne(libraryName: string, name: string, text: string): NativeFunction {
  const library = openLibrary(libraryName);
  try {
    return bindGuarded(() => library.func(text));
  } catch (cause) {
    throw new WeftlineError('WL_UNSUPPORTED', `${libraryName} has no function ${name}: it is too old`, {
      details: { library: libraryName, name },
      cause,
    });
  }
}

/** The function is not declared: threads that call no native function need not load koffi. */
const dlsymFunction = onFirstCall(() => openLibrary(ownProcess).func('intptr_t dlsym(intptr_t, str)'));

/** koffi takes each name of a prototype once per process. */
const pointerTypes = new Map<string, ReturnType<KoffiModule['proto']>>();

/** The native function at an address, which native code has handed out. */
export function functionAt(address: number, text: string): NativeFunction {
  const loader = loadKoffi();
  return bindGuarded(() => {
    let type = pointerTypes.get(text);
    if (type === undefined) pointerTypes.set(text, (type = loader.proto(text)));
    return loader.decode(BigInt(address), type) as NativeFunction;
  });
}

/** Address of a function that is loaded in this process anyway, to be handed to native code. */
export function symbolAddress(name: string): number {
  return Number(dlsymFunction()(0, name));
}

// What a failed C function says: the error with the call, the name of its errno, and what was being done.

/** The error of a call that returned a negative errno. */
export function nativeError(call: string, what: string, result: number): WeftlineError {
  const errno = -result;
  const name = errnoName(errno);
  return new WeftlineError('WL_NATIVE', `${call} failed with ${name}: ${what}`, { details: { call, errno, name } });
}

function errnoName(errno: number): string {
  const names = Object.entries(loadKoffi().os.errno);
  return names.find(([, value]) => value === errno)?.[0] ?? `errno ${errno}`;
}
