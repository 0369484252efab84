// Rails of the transport: which network interfaces they are, and which of them is nearest to each GPU.
import { asWeftlineError } from '../../core/errors.ts';
import { describePlan, planRails, type RailPlan } from '../../rails/nearest-rail.ts';
import { settingsTable } from '../../settings/settings.ts';
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';

export function checkRails(machine: MachineProbe): Finding {
  const list = listOf(machine);
  const name = list === '' ? 'network interfaces' : 'rails';
  try {
    const plan = readRails(machine);
    if (plan.rails.length > 0) return { name, status: 'ok', value: describePlan(plan).join('\n') };
    return { name, status: 'absent', value: 'none but loopback', advice: 'ranks and agents reach no other machine' };
  } catch (error) {
    return { name, status: 'short', value: list, advice: asWeftlineError(error).message };
  }
}

/** Those of the setting, or all that this machine has. Fails with WL_CONFIG for a wrong list. */
export function readRails(machine: MachineProbe): RailPlan {
  return planRails(listOf(machine), machine, machine.interfaces);
}

function listOf(machine: MachineProbe): string {
  return machine.env[settingsTable.transportRails.env]?.trim() ?? '';
}
