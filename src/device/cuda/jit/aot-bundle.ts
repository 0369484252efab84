// Kernels compiled ahead of time: a folder of cubins with a manifest, for machines without NVRTC.
import { existsSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { z } from '#zod';
import { WeftlineError } from '../../../core/errors.ts';
import { makeFolder, readTrusted, replaceFile } from '../../../core/guarded-file.ts';
import { sha256 } from './cubin-cache.ts';
import { type ConstantValues, type KernelFile, variantName } from '../kernel-files.ts';

const MANIFEST = 'weftline-kernels.json';

const manifestSchema = z.object({
  schema: z.literal('weftline.kernels/1'),
  compiler: z.string(),
  variants: z.array(
    z.object({
      /** The name that variantName() gives. */
      name: z.string(),
      architecture: z.string(),
      /** Hash of the sources and flags it was compiled from. */
      sources: z.string(),
      cubin: z.string().regex(/^[\w.-]+$/),
      sha256: z.string(),
    }),
  ),
});

/** Other users may run what it holds, and none may change it, whatever the umask. */
const published = { mode: 0o644, isDurable: true };

type Manifest = z.infer<typeof manifestSchema>;

export interface CompiledVariant {
  readonly file: KernelFile;
  readonly values: ConstantValues;
  readonly architecture: string;
  readonly sources: string;
  readonly cubin: Uint8Array;
}

/** Fills a folder; variants of an earlier call stay, unless they are replaced. Fails with WL_FILE. */
export function writeBundle(folder: string, compiler: string, compiled: readonly CompiledVariant[]): void {
  try {
    makeFolder(folder, 0o755);
    const variants = compiled.map(({ file, values, architecture, sources, cubin }) => {
      const name = variantName(file, values);
      const fileName = `${name.replaceAll(/[^\w.-]+/g, '-')}.${architecture}.cubin`;
      replaceFile(join(folder, fileName), cubin, published);
      return { name, architecture, sources, cubin: fileName, sha256: sha256(cubin) };
    });
    const kept = (readManifest(folder)?.variants ?? []).filter(
      (old) => !variants.some((variant) => variant.cubin === old.cubin),
    );
    const manifest: Manifest = { schema: 'weftline.kernels/1', compiler, variants: [...kept, ...variants] };
    replaceFile(join(folder, MANIFEST), `${JSON.stringify(manifest, undefined, 2)}\n`, published);
  } catch (cause) {
    if (cause instanceof WeftlineError) throw cause;
    throw new WeftlineError('WL_FILE', `Cannot write compiled kernels to ${folder}`, { details: { folder }, cause });
  }
}

interface WantedVariant {
  readonly name: string;
  readonly architecture: string;
  readonly sources: string;
}

/**
 * The cubin of a variant, or undefined when the folder does not have it. Fails with WL_COMPILE when it was compiled
 * from other sources than this version's, with WL_FILE_FORMAT when the folder is damaged, with WL_FILE when it is no bundle
 * or others than this user and root could have filled it.
 */
export function readBundle(folder: string, wanted: WantedVariant): Uint8Array | undefined {
  const manifest = readManifest(folder);
  if (manifest === undefined) {
    throw new WeftlineError(
      'WL_FILE',
      `${folder} holds no compiled kernels (${MANIFEST}): fill it with "weftline compile"`,
      {
        details: { folder },
      },
    );
  }
  const variant = manifest.variants.find(
    ({ name, architecture }) => name === wanted.name && architecture === wanted.architecture,
  );
  if (variant === undefined) return undefined;
  if (variant.sources !== wanted.sources) {
    throw new WeftlineError(
      'WL_COMPILE',
      `${wanted.name} in ${folder} was compiled from the sources of another version: fill the folder again with "weftline compile"`,
      { details: { folder, name: wanted.name } },
    );
  }
  const cubin = readTrustedFile(folder, variant.cubin);
  if (sha256(cubin) !== variant.sha256) throw damaged(join(folder, variant.cubin));
  return cubin;
}

/** What is in it will run. */
function readTrustedFile(folder: string, name: string): Buffer {
  try {
    return readTrusted(realpathSync(folder), name);
  } catch (cause) {
    const path = join(folder, name);
    if (!(cause instanceof WeftlineError)) throw damaged(path, cause);
    const { details } = cause;
    throw new WeftlineError('WL_FILE', `Cannot use ${path}, which will run: it ${String(details['why'])}`, {
      details,
      cause,
    });
  }
}

function readManifest(folder: string): Manifest | undefined {
  const path = join(folder, MANIFEST);
  if (!existsSync(path)) return undefined;
  const text = readTrustedFile(folder, MANIFEST).toString();
  try {
    return manifestSchema.parse(JSON.parse(text));
  } catch (cause) {
    throw damaged(path, cause);
  }
}

function damaged(path: string, cause?: unknown): WeftlineError {
  return new WeftlineError('WL_FILE_FORMAT', `${path} is damaged: fill the folder again with "weftline compile"`, {
    details: { path },
    ...(cause === undefined ? {} : { cause }),
  });
}
