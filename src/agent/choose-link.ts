// Chooses the link for a transfer: the first backend that can carry it and by which the peer accepts another link.
import { WeftlineError } from '../core/errors.ts';
import type { Backend, BackendLink } from './backend.ts';
import { chooseBackend, type ChoiceOptions, judgeBackends } from './backend-choice.ts';
import type { LinkWait } from './remote-agent.ts';

export interface ChosenLink {
  readonly backend: Backend;
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
      return { backend, link: await peer.link(backend, options) };
    } catch (error) {
      if (forced !== undefined || !(error instanceof WeftlineError) || error.code !== 'WL_CAPACITY') throw error;
      peer.noteRefusal(backend.name, error.message);
      if (!judgeBackends(choice).some(({ isUsable }) => isUsable)) throw error;
      backend = chooseBackend(choice);
    }
  }
}
