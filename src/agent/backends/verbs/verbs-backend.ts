// The agent's backend over RDMA queue pairs (RC), driven by libibverbs.
import type { Backend, BackendContext } from '../../backend.ts';
import { openRdmaBackend } from '../../rdma/rdma-backend.ts';
import { choosePort } from '../../rdma/rdma-port.ts';
import { VerbsDevice } from './verbs-device.ts';

/**
 * Fails with WL_UNSUPPORTED without libibverbs or a port that can be used, with WL_CONFIG for settings that name what this
 * host does not have.
 */
export async function createBackend(context: BackendContext): Promise<Backend<'verbs'>> {
  const { rail, controlHost = context.host } = choosePort(context.settings);
  const device = new VerbsDevice(rail, context.settings);
  return openRdmaBackend(context, { name: 'verbs', device, host: controlHost });
}
