// Chooses the link for a transfer: the first backend that can carry it and by which the peer accepts another link.
import { WeftlineError } from '../core/errors.ts';
import { isLogged, log } from '../core/log.ts';
import type { BackendLink } from './backend.ts';
import type { NamedBackend } from './backends/backend-table.ts';
import { chooseBackend, type ChoiceOptions, judgeBackends } from './backend-choice.ts';
import type { LinkWait } from './remote-agent.ts';

export interface ChosenLink {
  readonly backend: NamedBackend;
  readonly link: BackendLink;
}

/**
 * Where a peer takes no further link by a backend (WL_CAPACITY), the next one carries it; `explain` then tells why. Fails
 * with what the backend failed with if none is left, or if it was asked for by name.
 */
export async function chooseLink(choice: ChoiceOptions, options: LinkWait): Promise<ChosenLink> {
  const { peer, forced } = choice;
  let backend = chooseBackend(choice);
  for (;;) {
    try {
      const link = await peer.link(backend, options);
      if (isLogged('agent', 'debug')) log('agent', 'debug', `to ${peer.name} by ${describe(choice, backend)}`);
      return { backend, link };
    } catch (error) {
      if (forced !== undefined || !(error instanceof WeftlineError) || error.code !== 'WL_CAPACITY') throw error;
      log('agent', 'warn', `to ${peer.name} not by ${backend.name}: ${error.message}`);
      peer.noteRefusal(backend.name, error.message);
      if (!judgeBackends(choice).some(({ isUsable }) => isUsable)) throw error;
      backend = chooseBackend(choice);
    }
  }
}

/** "multipath (staged through pinned memory; not local: it is on another host)" */
function describe(choice: ChoiceOptions, chosen: NamedBackend): string {
  const verdicts = judgeBackends(choice);
  const how = verdicts.find(({ backend }) => backend === chosen.name)?.how;
  const others = verdicts.filter(({ backend, why }) => backend !== chosen.name && why !== undefined);
  const reasons = others.map(({ backend, why }) => `not ${backend}: ${why}`);
  const notes = how === undefined ? reasons : [how, ...reasons];
  return notes.length === 0 ? chosen.name : `${chosen.name} (${notes.join('; ')})`;
}
