// Gives the machine code of a kernel variant: from this process, a bundle, the cache on disk, or the compiler.
import { WeftlineError } from '../../../core/errors.ts';
import type { Compiler } from '../../../native/nvrtc.ts';
import { compileFlags } from '../device-properties.ts';
import { cacheKey, CubinCache, type KernelText, readKernelText, sourceHash } from './cubin-cache.ts';
import { type ConstantValues, definesOf, type KernelFile, variantName } from '../kernel-files.ts';

/** See kernels/cuda/include/weftline/trace.cuh. */
const TRACED = '-DWEFTLINE_TRACE=1';

export interface KernelCompilerOptions {
  /** The architecture that parseArchitecture() gives. */
  readonly architecture: string;
  readonly cacheFolder: string | undefined;
  /** Looked at first; empty for none. */
  readonly aotFolder?: string;
  /** True: only kernels that the folder has may be used. */
  readonly useAot?: boolean;
  /** Kernels that are compiled here write records of their phases; those of the AOT folder do not. */
  readonly isTraced?: boolean;
  /** Called when something must be compiled and never before. */
  readonly openCompiler: () => Compiler;
  /** How kernels are read; from the files of this package by default. */
  readonly readText?: (file: string) => KernelText;
}

export class KernelCompiler {
  readonly #options: KernelCompilerOptions;
  readonly #cache: CubinCache;
  readonly #cubins = new Map<string, Promise<Uint8Array>>();

  constructor(options: KernelCompilerOptions) {
    this.#options = options;
    this.#cache = new CubinCache(options.cacheFolder);
  }

  /**
   * `useAot`: only from the AOT folder, even if the options do not ask for it. Fails with WL_COMPILE, which holds the
   * compiler's log, or WL_UNSUPPORTED without a compiler.
   */
  cubin(file: KernelFile, values: ConstantValues, useAot = false): Promise<Uint8Array> {
    const onlyAot = useAot || this.#options.useAot === true;
    const key = `${variantName(file, values)}${onlyAot ? ' AOT' : ''}`;
    let cubin = this.#cubins.get(key);
    if (cubin === undefined) {
      cubin = this.#find(file, values, onlyAot);
      this.#cubins.set(key, cubin);
      // A failure is not remembered: its cause may be removed.
      cubin.catch(() => this.#cubins.delete(key));
    }
    return cubin;
  }

  /** The cubin of a text that is not ours: from the disk's cache, or compiled. */
  cubinOf(text: KernelText, defines: readonly string[]): Promise<Uint8Array> {
    const flags = [...compileFlags(this.#options.architecture), ...defines];
    return this.#compile(text, this.#traced(flags), text.name);
  }

  /** What identifies the sources of a variant in a bundle. */
  sources(file: KernelFile, values: ConstantValues): string {
    return sourceHash(this.#text(file), this.#flags(file, values));
  }

  async #find(file: KernelFile, values: ConstantValues, onlyAot: boolean): Promise<Uint8Array> {
    const { aotFolder = '' } = this.#options;
    if (aotFolder !== '') {
      // Loaded here, because it brings a schema library that most processes do not need.
      const { readBundle } = await import('./aot-bundle.ts');
      const found = readBundle(aotFolder, {
        name: variantName(file, values),
        architecture: this.#options.architecture,
        sources: this.sources(file, values),
      });
      if (found !== undefined) return found;
    }
    if (onlyAot) throw this.#notInBundle(file, values, aotFolder);
    return this.#compile(this.#text(file), this.#traced(this.#flags(file, values)), variantName(file, values));
  }

  async #compile(text: KernelText, flags: readonly string[], name: string): Promise<Uint8Array> {
    const compiler = this.#options.openCompiler();
    const key = cacheKey(text, flags, compiler.version);
    const cached = this.#cache.read(key);
    if (cached !== undefined) return cached;
    const result = await compiler.compile(text, flags);
    if (!result.ok) {
      throw new WeftlineError(
        'WL_COMPILE',
        `${name} does not compile for ${this.#options.architecture} with NVRTC ${compiler.version}:\n${result.log}`,
        {
          details: {
            file: text.name,
            architecture: this.#options.architecture,
            flags,
            log: result.log,
            ...firstMistake(result.log),
          },
        },
      );
    }
    this.#cache.write(key, result.cubin);
    return result.cubin;
  }

  #text(file: KernelFile): KernelText {
    return (this.#options.readText ?? readKernelText)(file.file);
  }

  #flags(file: KernelFile, values: ConstantValues): string[] {
    return [...compileFlags(this.#options.architecture), ...definesOf(file, values)];
  }

  /** A flag is part of the key of the cache. */
  #traced(flags: readonly string[]): readonly string[] {
    return this.#options.isTraced === true ? [...flags, TRACED] : flags;
  }

  #notInBundle(file: KernelFile, values: ConstantValues, folder: string): WeftlineError {
    const { architecture } = this.#options;
    const shapes = Object.entries(file.constants)
      .filter(([, range]) => 'shape' in range)
      .map(([name]) => ` --${name.toLowerCase()} ${values[name]}`);
    const where = folder === '' ? 'no AOT folder is set' : `${folder} does not have it for ${architecture}`;
    return new WeftlineError(
      'WL_COMPILE',
      `Only kernels compiled ahead of time may be used, but ${where}: ${variantName(file, values)}; run "weftline compile --arch ${architecture}${shapes.join('')} --out ${folder === '' ? 'FOLDER' : folder}" where NVRTC is`,
      { details: { file: file.file, values, architecture, folder } },
    );
  }
}

/** The place where the compiler saw the first error, as its log says: "scale.cu(3): error: identifier \"y\" is undefined". */
function firstMistake(log: string): { readonly line?: number; readonly mistake?: string } {
  const [, line, mistake] = /\((\d+)\): (?:catastrophic )?error: (.*)/.exec(log) ?? [];
  return line === undefined || mistake === undefined ? {} : { line: Number(line), mistake };
}
