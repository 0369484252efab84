// NVRTC, NVIDIA's run-time compiler, as one function: text in, machine code or the compiler's log out.
import { WeftlineError } from '../core/errors.ts';
import { findCudaLibrary, localFiles } from './file-probe.ts';
import { bindLazily, lazyFunction, type NativeFunction, type Out, type StatusCalls } from './library.ts';

const table = {
  nvrtcVersion: 'int nvrtcVersion(_Out_ int* major, _Out_ int* minor)',
  nvrtcCreateProgram:
    'int nvrtcCreateProgram(_Out_ uint64_t* program, const char* text, const char* name, int headerCount, const char** headers, const char** includeNames)',
  nvrtcGetProgramLogSize: 'int nvrtcGetProgramLogSize(uint64_t program, _Out_ size_t* bytes)',
  nvrtcGetProgramLog: 'int nvrtcGetProgramLog(uint64_t program, void* log)',
  nvrtcGetCUBINSize: 'int nvrtcGetCUBINSize(uint64_t program, _Out_ size_t* bytes)',
  nvrtcGetCUBIN: 'int nvrtcGetCUBIN(uint64_t program, void* cubin)',
  nvrtcDestroyProgram: 'int nvrtcDestroyProgram(uint64_t* program)',
} as const;

/** Apart, because it runs on a thread of the pool. */
const compilePrototype = 'int nvrtcCompileProgram(uint64_t, int, const char**)';

type NvrtcCalls = StatusCalls<typeof table>;

interface Source {
  readonly name: string;
  readonly text: string;
  readonly headers: Readonly<Record<string, string>>;
}

export type Compilation =
  | { readonly ok: true; readonly cubin: Uint8Array; readonly log: string }
  | { readonly ok: false; readonly log: string };

/** What compiles kernels; tests put another one in its place. */
export interface Compiler {
  /** "13.0": part of the cache's key. */
  readonly version: string;
  compile(source: Source, flags: readonly string[]): Promise<Compilation>;
}

const opened = new Map<string, Nvrtc>();

/** Opens the library once. Fails with WL_UNSUPPORTED when there is none, or none at the given place. */
export function openNvrtc(setting = ''): Compiler {
  const path = findCudaLibrary(localFiles(), 'nvrtc', setting);
  if (path === undefined) {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      setting === ''
        ? 'NVRTC, which compiles GPU kernels, was not found: install the CUDA toolkit and set CUDA_HOME, or "pip install nvidia-cuda-nvrtc" into the active environment, or give its path by --nvrtc or WEFTLINE_NVRTC, or use kernels compiled ahead of time (weftline compile, then --aot-folder or WEFTLINE_AOT_FOLDER)'
        : `There is no NVRTC at ${setting}: give the path of libnvrtc.so or of its folder`,
      { details: { path: setting } },
    );
  }
  let nvrtc = opened.get(path);
  if (nvrtc === undefined) opened.set(path, (nvrtc = new Nvrtc(path)));
  return nvrtc;
}

class Nvrtc implements Compiler {
  readonly version: string;
  readonly #calls: NvrtcCalls;
  readonly #compileProgram: () => NativeFunction;

  constructor(path: string) {
    this.#calls = bindLazily(() => path, table);
    this.#compileProgram = lazyFunction(path, compilePrototype);
    const major: Out = [0];
    const minor: Out = [0];
    check('nvrtcVersion', this.#calls.nvrtcVersion(major, minor));
    this.version = `${major[0]}.${minor[0]}`;
  }

  /** Compiles on a thread of the pool. Errors in the text are a result, not an exception. */
  async compile(source: Source, flags: readonly string[]): Promise<Compilation> {
    const calls = this.#calls;
    const program: Out = [0];
    const names = Object.keys(source.headers);
    const headers = Object.values(source.headers);
    check(
      'nvrtcCreateProgram',
      calls.nvrtcCreateProgram(program, source.text, source.name, names.length, headers, names),
    );
    try {
      const status = await this.#compileAsync(program[0], flags);
      const log = this.#log(program[0]);
      if (status !== 0) return { ok: false, log: log === '' ? `NVRTC ended with status ${status}` : log };
      const bytes: Out = [0];
      check('nvrtcGetCUBINSize', calls.nvrtcGetCUBINSize(program[0], bytes));
      const cubin = new Uint8Array(bytes[0]);
      check('nvrtcGetCUBIN', calls.nvrtcGetCUBIN(program[0], cubin));
      return { ok: true, cubin, log };
    } finally {
      calls.nvrtcDestroyProgram([program[0]]);
    }
  }

  #compileAsync(program: number, flags: readonly string[]): Promise<number> {
    const compile = this.#compileProgram();
    return new Promise((resolve, reject) => {
      compile.async(program, flags.length, flags, (error: Error | null, status: number) => {
        if (error === null) resolve(status);
        else reject(error);
      });
    });
  }

  #log(program: number): string {
    const bytes: Out = [0];
    check('nvrtcGetProgramLogSize', this.#calls.nvrtcGetProgramLogSize(program, bytes));
    const log = new Uint8Array(bytes[0]);
    check('nvrtcGetProgramLog', this.#calls.nvrtcGetProgramLog(program, log));
    return Buffer.from(log).toString('utf8').replace(/\0+$/, '').trim();
  }
}

function check(call: string, status: number): void {
  if (status === 0) return;
  throw new WeftlineError('WL_COMPILE', `${call} failed with status ${status}: this NVRTC cannot be used`, {
    details: { call, status },
  });
}
