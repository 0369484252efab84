// How a file of kernels/cuda is declared to the rest of the library: its kernels, and the constants it is compiled for.
import type { Layout } from '../../abi/layout.ts';
import { invalidArgument } from '../../core/errors.ts';

/** Constants that `weftline compile` takes from its options; each becomes -DWEFTLINE_<NAME>. */
export const shapeConstants = {
  HIDDEN: { option: 'hidden', sentence: 'elements of a token' },
  TOPK: { option: 'topk', sentence: 'experts of a token' },
  RANKS: { option: 'ranks', sentence: 'ranks that take part' },
} as const;

export type ShapeConstant = keyof typeof shapeConstants;

/** A constant of one file: values of a shape, of which the tests compile the examples, or one of a few choices. */
type ConstantRange =
  | { readonly shape: ShapeConstant; readonly examples: readonly number[] }
  | { readonly choices: readonly number[] };

export interface KernelFile<
  Constants extends string = string,
  Kernels extends Readonly<Record<string, Layout>> = Readonly<Record<string, Layout>>,
> {
  /** In kernels/cuda. */
  readonly file: string;
  readonly constants: Readonly<Record<Constants, ConstantRange>>;
  /** Entry points (extern "C") and the layout of the one structure that each takes by value. */
  readonly kernels: Kernels;
  /** The tests let none of its kernels spill registers. */
  readonly hot: boolean;
}

/** One declaration per file of kernels/cuda; add it to kernelCatalogue too. */
export function defineKernelFile<
  const Constants extends string,
  const Kernels extends Readonly<Record<string, Layout>>,
>(file: KernelFile<Constants, Kernels>): KernelFile<Constants, Kernels> {
  return file;
}

export type ConstantValues<Constants extends string = string> = Readonly<Record<Constants, number>>;

/** "self-test.cu" or "dispatch.cu HIDDEN=7168 TOPK=8": a variant's name in errors and manifests. */
export function variantName(file: KernelFile, values: ConstantValues): string {
  return [file.file, ...Object.keys(file.constants).map((name) => `${name}=${values[name]}`)].join(' ');
}

/** The compiler's flags for one variant. Fails with WL_INVALID_ARGUMENT for a value that the file does not allow. */
export function definesOf(file: KernelFile, values: ConstantValues): string[] {
  return Object.entries(file.constants).map(([name, range]) => {
    const value = values[name];
    const choices = 'choices' in range ? range.choices : undefined;
    const allowed = choices === undefined ? 'a whole number of at least 1' : choices.join(', ');
    const known = Number.isInteger(value) && (choices?.includes(value as number) ?? (value as number) >= 1);
    if (!known) throw invalidArgument(`constant ${name} of ${file.file}`, value, allowed);
    return `-DWEFTLINE_${name}=${value}`;
  });
}

/** All combinations of the constants, a shape's values coming from `shapes` where it is named there. */
export function variantsOf(
  file: KernelFile,
  shapes: Readonly<Partial<Record<ShapeConstant, readonly number[]>>> = {},
): ConstantValues[] {
  let variants: Record<string, number>[] = [{}];
  for (const [name, range] of Object.entries(file.constants)) {
    const values = 'choices' in range ? range.choices : (shapes[range.shape] ?? range.examples);
    variants = variants.flatMap((variant) => values.map((value) => ({ ...variant, [name]: value })));
  }
  return variants;
}
