// What "weftline doctor --rdma" tells: every RDMA device and port, which of them would be used, and why.
import { asWeftlineError } from '../../core/errors.ts';
import { chooseFlush, type FlushChoice } from '../../native/verbs/visibility-flush.ts';
import { gpuDevices } from '../../rails/nearest-device.ts';
import { chooseRdma, type RdmaChoice, type RdmaSettings } from '../../rails/rdma-choice.ts';
import type { RdmaDevice } from '../../rails/rdma-devices.ts';
import { readSettings } from '../../settings/settings.ts';
import type { MachineProbe } from './machine-probe.ts';

export interface RdmaExamination {
  readonly schema: 'weftline.doctor.rdma/1';
  /** True if there is a port that would be used. */
  readonly rdmaReady: boolean;
  /** Why there is none, and what to do. */
  readonly problem?: string;
  readonly devices: readonly RdmaDevice[];
  readonly choice?: RdmaChoice;
  /** How writes of the chosen device into memory of a GPU would be flushed. */
  readonly flush?: FlushChoice;
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
  const flush = flushOf(choice, devices);
  const problem = rdmaReady ? undefined : whyNone(machine, devices);
  return { schema, rdmaReady, ...(problem === undefined ? {} : { problem }), devices, choice, ...flush, settings };
}

function flushOf({ rails: [best] }: RdmaChoice, devices: readonly RdmaDevice[]): Pick<RdmaExamination, 'flush'> {
  const atomicCap = devices.find(({ name }) => name === best?.name)?.attributes?.atomicCap;
  if (atomicCap === undefined) return {};
  const flush = chooseFlush({ isOrdered: false, atomicCap, isFlagRegistered: true, isFlagMapped: true });
  return flush === undefined ? {} : { flush };
}

function whyNone(machine: MachineProbe, devices: readonly RdmaDevice[]): string {
  if (devices.length > 0) {
    return 'no port of the RDMA devices can be used, for the reasons above: see cables, switch and "rdma link", or the flags that were given';
  }
  if (!machine.exists('/sys/class/infiniband_verbs')) {
    return 'the kernel of this machine has no RDMA device: load the driver of the network card and ib_uverbs ("modprobe ib_uverbs"), and start a container with --device=/dev/infiniband; without RDMA nothing has to be done, as hosts reach each other over TCP and UDP';
  }
  return 'there is no RDMA device, or none that libibverbs has a provider for: install it (Debian and Ubuntu: "apt-get install ibverbs-providers")';
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
