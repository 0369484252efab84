// weftline/unpack: fragments of a bounce buffer to their places in memory, and back into one buffer.
export { DescriptorBlock } from './descriptor-block.ts';
export { type FragmentLauncher, PackLauncher, type PreparedFragments, UnpackLauncher } from './fragment-launcher.ts';
export type { LauncherConfig } from './launcher-config.ts';
