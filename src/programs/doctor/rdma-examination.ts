// What "weftline doctor --rdma" tells: every RDMA device and port, which of them would be used, and why.
import { asWeftlineError } from '../../core/errors.ts';
import { gpuDevices } from '../../rails/nearest-device.ts';
import { chooseRdma, type RdmaChoice, type RdmaSettings } from '../../rails/rdma-choice.ts';
import type { RdmaDevice } from '../../rails/rdma-devices.ts';
import { readSettings } from '../../settings/settings.ts';
import type { MachineProbe } from './machine-probe.ts';

export interface RdmaExamination {
  readonly schema: 'weftline.doctor.rdma/1';
  /** True if there is a port that would be used. */
  readonly rdmaReady: boolean;
  /** Why there is none. */
  readonly problem?: string;
  readonly devices: readonly RdmaDevice[];
  readonly choice?: RdmaChoice;
  readonly settings: RdmaSettings;
}

/** Opens every RDMA device for a moment. Fails with WL_CONFIG for a setting with a wrong value. */
export function examineRdma(machine: MachineProbe): RdmaExamination {
  const settings = rdmaSettingsOf(machine);
  const schema = 'weftline.doctor.rdma/1';
  let devices: readonly RdmaDevice[] = [];
  try {
    devices = machine.rdmaHardware();
  } catch (error) {
    return { schema, rdmaReady: false, problem: asWeftlineError(error).message, devices, settings };
  }
  const choice = chooseRdma({ devices, gpus: gpuDevices(machine), interfaces: machine.interfaces }, settings);
  const rdmaReady = choice.rails.length > 0;
  const problem = rdmaReady ? undefined : whyNone(machine, devices);
  return { schema, rdmaReady, ...(problem === undefined ? {} : { problem }), devices, choice, settings };
}

function whyNone(machine: MachineProbe, devices: readonly RdmaDevice[]): string {
  if (devices.length > 0) return 'no port of the RDMA devices can be used';
  if (!machine.exists('/sys/class/infiniband_verbs')) {
    return 'the kernel of this machine has no RDMA (module ib_uverbs), or no RDMA device';
  }
  return 'there is no RDMA device, or none that libibverbs has a provider for (Debian and Ubuntu: ibverbs-providers)';
}

function rdmaSettingsOf(machine: MachineProbe): RdmaSettings {
  const all = readSettings({}, machine.env);
  return {
    rdmaDevices: all.rdmaDevices,
    rdmaPort: all.rdmaPort,
    rdmaGidIndex: all.rdmaGidIndex,
    rdmaService: all.rdmaService,
    rdmaTrafficClass: all.rdmaTrafficClass,
    rdmaRelaxedOrdering: all.rdmaRelaxedOrdering,
    rdmaControlInterface: all.rdmaControlInterface,
  };
}
