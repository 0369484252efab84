// What an agent says at level debug of the network interfaces of its host, and of the GPUs that are nearest to them.
import { isLogged, log } from '../core/log.ts';
import { describePlan, planRails } from '../rails/nearest-rail.ts';
import type { Settings } from '../settings/settings.ts';

/** Fails with WL_CONFIG for a wrong list of rails. */
export function logRails(agent: string, { transportRails }: Settings): void {
  if (!isLogged('agent', 'debug')) return;
  for (const line of describePlan(planRails(transportRails))) log('agent', 'debug', `rails of ${agent}: ${line}`);
}
