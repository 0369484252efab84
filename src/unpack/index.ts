// weftline/unpack: fragments of a bounce buffer to their places in memory, and back into one buffer.
export { DescriptorBlock, type MemorySpan, type ReadyFlag } from './descriptor-block.ts';
export type { FragmentLauncher, FragmentLaunchOptions } from './fragment-launcher.ts';
export type { LaunchTimes } from './fragment-launcher.ts';
export type { DescriptorPool, LauncherConfig } from './launcher-config.ts';
export { PackLauncher } from './fragment-launcher.ts';
export type { PreparedFragments } from './fragment-launcher.ts';
export { UnpackLauncher } from './fragment-launcher.ts';
