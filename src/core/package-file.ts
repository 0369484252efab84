// Files that must lie beside the code of the package: entries of threads, kernels, native modules.
import { WeftlineError } from './errors.ts';

/** False in a bundle, where this code lies in a file of another name, or in none that is known. */
const isInPlace = (import.meta.url as string | undefined)?.endsWith('/core/package-file.js') === true;

/**
 * A file of the package: `path` seen from the module whose `import.meta.url` is `base`. Fails with WL_UNSUPPORTED where a
 * bundler has merged weftline into a program, for it left the files behind.
 */
export function packageFile(path: string, base: string): URL {
  requirePackageFiles();
  return new URL(path, base);
}

/** Fails where packageFile() would; for objects that do without a file that they cannot have. */
export function requirePackageFiles(): void {
  if (isInPlace) return;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    'Cannot find the files of weftline: it was bundled into this program, but its threads, kernels and native modules were not. Install weftline beside the bundle and declare it external (esbuild: --external:weftline --external:weftline/*, rollup and vite: external, webpack: externals)',
  );
}
