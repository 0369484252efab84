// The text of our kernels and of all headers they may include, as the build put it beside the code.
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { packageFile } from '../../../core/package-file.ts';

/** dist/kernels/cuda; this file runs from dist/device/cuda/jit. */
export function kernelFolder(): string {
  return fileURLToPath(packageFile('../../../kernels/cuda', import.meta.url));
}

export interface KernelText {
  /** What the compiler's messages call it. */
  readonly name: string;
  readonly text: string;
  /** By the name in #include. */
  readonly headers: Readonly<Record<string, string>>;
}

export function readKernelText(file: string): KernelText {
  return {
    name: `kernels/cuda/${file}`,
    text: readFileSync(`${kernelFolder()}/${file}`, 'utf8'),
    headers: ourHeaders(),
  };
}

/** All of include/, for our kernels and for those of users. */
export function ourHeaders(): Readonly<Record<string, string>> {
  return (allHeaders ??= readHeaders());
}

/** As #include names them. */
export function headerNames(): string[] {
  const names = readdirSync(`${kernelFolder()}/include`, { recursive: true, encoding: 'utf8' });
  return names.filter((name) => name.endsWith('.cuh')).toSorted();
}

let allHeaders: Readonly<Record<string, string>> | undefined;

function readHeaders(): Record<string, string> {
  return Object.fromEntries(
    headerNames().map((name) => [name, readFileSync(`${kernelFolder()}/include/${name}`, 'utf8')]),
  );
}
