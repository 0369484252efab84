// Opens shared libraries and binds their functions at first call. The only folder that imports koffi.
import { createRequire } from 'node:module';
import type * as Koffi from 'koffi';
import { WeftlineError } from '../core/errors.ts';

type KoffiModule = typeof Koffi;
/** koffi's declared functions take what their prototype says; the wrappers beside each declaration give them types. */
export type NativeFunction = ReturnType<Koffi.LibraryHandle['func']>;

let koffi: KoffiModule | undefined;

/** koffi itself, loaded at first use so that importing weftline loads nothing native. */
export function loadKoffi(): KoffiModule {
  if (koffi === undefined) {
    try {
      koffi = createRequire(import.meta.url)('koffi') as KoffiModule;
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
export const ownProcess = null;

const libraries = new Map<string | null, Koffi.LibraryHandle>();

/** Opens a shared library once per process. Fails with WL_UNSUPPORTED naming the library. */
function openLibrary(name: string | null): Koffi.LibraryHandle {
  let library = libraries.get(name);
  if (library === undefined) {
    try {
      library = loadKoffi().load(name);
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

/** Binds one C prototype when it is first called. */
export function lazyFunction(libraryName: string | null, prototype: string): () => NativeFunction {
  let bound: NativeFunction | undefined;
  return () => (bound ??= openLibrary(libraryName).func(prototype));
}

/** The address of the first byte of a view; the view's memory must not move (shared or mapped memory does not). */
export function addressOf(view: ArrayBufferView): bigint {
  return loadKoffi().address(view);
}
