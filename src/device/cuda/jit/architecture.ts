// Names of GPU architectures as the compilers know them.
import { invalidArgument } from '../../../core/errors.ts';

/** Compute capability, major and minor, that the kernels need at least. */
export const OLDEST_CAPABILITY = 80;

/** sm_90 has instructions that only its architecture-specific target allows. */
const specific: ReadonlySet<string> = new Set(['sm_90']);

/** The compiler's target for a device. */
export function architectureOf(capability: { readonly major: number; readonly minor: number }): string {
  return parseArchitecture(`sm_${capability.major}${capability.minor}`);
}

/** "sm_90" and "90" mean sm_90a here; "sm_80" stays. Fails with WL_INVALID_ARGUMENT. */
export function parseArchitecture(text: string): string {
  const digits = /^(?:sm_)?(\d{2,3})a?$/.exec(text)?.[1];
  if (digits === undefined || Number(digits) < OLDEST_CAPABILITY)
    throw invalidArgument('architecture', text, `sm_${OLDEST_CAPABILITY} or newer, as sm_90`);
  const name = `sm_${digits}`;
  return specific.has(name) ? `${name}a` : name;
}

/** Flags of every kernel, nvcc's and NVRTC's alike. No fast math: results equal those of the CPU device. */
export function compileFlags(architecture: string): string[] {
  return [`-arch=${architecture}`, '-std=c++17', '-lineinfo'];
}
