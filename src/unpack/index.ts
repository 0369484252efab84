// weftline/unpack: fragments of a bounce buffer to their places in memory, and back into one buffer.
export { DescriptorBlock, type MemorySpan, type ReadyFlag } from './descriptor-block.ts';
export type { FragmentLauncher, FragmentLaunchOptions } from './fragment-launcher.ts';
export type { LaunchTimes } from './launch-profile.ts';
export type { DescriptorPool, LauncherConfig } from './launcher-config.ts';
export { PackLauncher } from './pack-launcher.ts';
export type { PreparedFragments } from './prepared-fragments.ts';
export { UnpackLauncher } from './unpack-launcher.ts';
