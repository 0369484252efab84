// Everything that is checked on a machine, in the order it is shown. A new row is one function and one line here.
import { checkContainer } from './container.ts';
import { checkCores } from './cores.ts';
import type { Check, Finding } from './finding.ts';
import { checkHugePages } from './huge-pages.ts';
import { orUndefined } from '../../native/file-probe.ts';
import type { RailPlan } from '../../rails/nearest-rail.ts';
import type { MachineProbe } from './machine-probe.ts';
import { checkMemory } from './memory.ts';
import { checkNativeCalls } from './native-calls.ts';
import { checkNodeVersion } from './node-version.ts';
import { checkCublas, checkCudaDriver, checkGpus, checkNvrtc } from './nvidia.ts';
import { checkLockedMemory, checkOpenFiles } from './process-limits.ts';
import { checkRails, readRails } from './rails.ts';
import { checkRdmaDevices, checkUcx, checkVerbs } from './rdma.ts';
import { checkSharedMemory } from './shared-memory.ts';
import { checkUdpMemory, checkUdpReceiveBuffer, checkUdpSendBuffer } from './udp-buffers.ts';
import { checkWebAssembly } from './webassembly.ts';

const checks: readonly Check[] = [
  checkNodeVersion,
  checkCores,
  checkMemory,
  checkSharedMemory,
  checkHugePages,
  checkWebAssembly,
  checkNativeCalls,
  checkOpenFiles,
  checkLockedMemory,
  checkContainer,
  checkGpus,
  checkCudaDriver,
  checkNvrtc,
  checkCublas,
  checkRails,
  checkRdmaDevices,
  checkVerbs,
  checkUcx,
  checkUdpReceiveBuffer,
  checkUdpSendBuffer,
  checkUdpMemory,
];

export interface Examination {
  readonly schema: 'weftline.doctor/1';
  /** False when CPU ranks cannot run on this machine. */
  readonly cpuReady: boolean;
  readonly findings: readonly Finding[];
  /** Missing if the setting names what this machine does not have. */
  readonly rails: RailPlan | undefined;
}

/** Looks at the machine; reads only, loads no driver. */
export function examine(machine: MachineProbe): Examination {
  const findings = checks.map((check) => check(machine));
  const cpuReady = !findings.some((finding) => finding.blocksCpu);
  return { schema: 'weftline.doctor/1', cpuReady, findings, rails: orUndefined(() => readRails(machine)) };
}
