// Which backend carries to a peer that counts as one of another host.
import type { Agent } from './agent.ts';
import type { BackendName } from './backends/backend-table.ts';

/**
 * Hosts of a job may be containers of one machine, whose processes can copy into each other. They share no memory all the
 * same, which signals within a machine need: then the next backend carries. Undefined: the agent's choice.
 */
export function carrierAcrossHosts(agent: Pick<Agent, 'explain'>, peer: string): BackendName | undefined {
  const usable = agent.explain(peer).filter(({ isUsable }) => isUsable);
  return usable[0]?.backend === 'local' ? usable[1]?.backend : undefined;
}
