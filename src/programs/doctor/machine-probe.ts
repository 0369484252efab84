// What the checks ask of the machine; tests put another machine in its place.
import { statfsSync } from 'node:fs';
import { availableParallelism, cpus, totalmem } from 'node:os';
import { wasm } from '../../device/cpu/kernels.ts';
import { type FileProbe, localFiles, orUndefined } from '../../native/file-probe.ts';
import { loadKoffi } from '../../native/library.ts';
import { openUcx } from '../../native/ucx.ts';
import { type HostInterface, hostInterfaces } from '../../rails/rail-list.ts';
import { type RdmaDevice, rdmaHardware } from '../../rails/rdma-devices.ts';

/** Reading never throws: what is missing or forbidden is undefined or empty. */
export interface MachineProbe extends FileProbe {
  readonly platform: string;
  readonly nodeVersion: string;
  /** Logical processors of the machine, and how many of them this process may use. */
  readonly cores: { readonly model: string; readonly present: number; readonly usable: number };
  readonly memoryBytes: number;
  readonly interfaces: readonly HostInterface[];
  fileSystem(path: string): { readonly totalBytes: number; readonly freeBytes: number } | undefined;
  /** Throws when the kernels cannot run here: compiles a SIMD module, reserves a shared memory of so many pages. */
  tryWebAssembly(maximumPages: number): void;
  /** Throws when native functions cannot be called here. */
  tryNativeCalls(): void;
  /** Of libibverbs. Throws where there is none. */
  rdmaHardware(): readonly RdmaDevice[];
  /** Of the UCX that an agent would use; undefined if none can be. */
  ucxVersion(): string | undefined;
}

/** The machine we run on. */
export function thisMachine(): MachineProbe {
  return {
    ...localFiles(),
    platform: process.platform,
    nodeVersion: process.versions.node,
    cores: { model: cpus()[0]?.model.trim() ?? 'unknown', present: cpus().length, usable: availableParallelism() },
    memoryBytes: totalmem(),
    interfaces: hostInterfaces(),
    fileSystem: (path) =>
      orUndefined(() => {
        const { bsize, blocks, bavail } = statfsSync(path);
        return { totalBytes: bsize * blocks, freeBytes: bsize * bavail };
      }),
    tryWebAssembly,
    tryNativeCalls: () => void loadKoffi(),
    rdmaHardware: () => rdmaHardware(localFiles()),
    ucxVersion: () => orUndefined(() => openUcx().version),
  };
}

/** (module (func (export "f") (result v128) (v128.const i32x4 0 0 0 0))): compiles only where SIMD is supported. */
const simdModule = Buffer.from(
  `0061736d01000000 0105016000017b 03020100 07050101660000 0a16011400fd0c${'00'.repeat(16)}0b`
    .replaceAll(' ', '')
    .replace(' ', ''),
  'hex',
);

function tryWebAssembly(maximumPages: number): void {
  if (!wasm.validate(simdModule)) throw new Error('WebAssembly SIMD is not supported');
  const memory = new wasm.Memory({ initial: 1, maximum: maximumPages, shared: true });
  if (!(memory.buffer instanceof SharedArrayBuffer)) throw new Error('WebAssembly memory is not shared');
}
