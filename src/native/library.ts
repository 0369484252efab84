// Opens shared libraries and binds their functions at first call. The only folder that imports koffi.
import { createRequire } from 'node:module';
import type * as Koffi from 'koffi';
import { WeftlineError } from '../core/errors.ts';
import { packageFile } from '../core/package-file.ts';
import { bindGuarded } from './binding-guard.ts';

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

/** In place of a library's name: what is loaded in this process anyway. */
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

/** A C prototype whose parameters TypeScript sees as `Parameters`; bound when it is first called. */
export interface Prototype<Parameters extends readonly unknown[]> {
  readonly text: string;
  /** Only for the type. */
  readonly parameters?: Parameters;
}

export function prototype<Parameters extends readonly unknown[]>(text: string): Prototype<Parameters> {
  return { text };
}

/** Functions of one library that all return a status number. */
export type StatusCalls<Table extends Readonly<Record<string, Prototype<readonly unknown[]>>>> = {
  [Name in keyof Table]: Table[Name] extends Prototype<infer Parameters>
    ? (...parameters: Parameters extends readonly unknown[] ? Parameters : never) => number
    : never;
};

/**
 * Binds each function at its first call, after which the property is the native function itself, or what `wrap` makes of
 * it. A call of a function that the library lacks fails with WL_UNSUPPORTED.
 */
export function bindLazily<const Table extends Readonly<Record<string, Prototype<readonly unknown[]>>>>(
  libraryName: () => string,
  table: Table,
  wrap: (call: NativeFunction, name: string) => NativeFunction = (call) => call,
): StatusCalls<Table> {
  const calls: Record<string, NativeFunction> = {};
  for (const [name, { text }] of Object.entries(table)) {
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

/** Not declared: threads that call no native function need not load koffi. */
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

/** Where a function that is loaded in this process anyway begins, to be handed to native code. */
export function symbolAddress(name: string): number {
  return Number(dlsymFunction()(0, name));
}
