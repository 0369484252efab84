// The version of the NVIDIA driver, from what its kernel module tells of itself.

/** Where the kernel module tells it. */
export const driverVersionFile = '/proc/driver/nvidia/version';

/** "580.95.05", or undefined when the text is something else. */
export function parseDriverVersion(text: string): string | undefined {
  return /Kernel Module.*?\s(\d+(?:\.\d+)+)\s/.exec(text)?.[1];
}
