// The agent's backend over UCX: its puts, gets and atomics, where an RDMA device carries them out and checks them.
import { openUcx } from '../../../native/ucx.ts';
import type { Backend, BackendContext } from '../../backend.ts';
import { openRdmaBackend } from '../../rdma/rdma-backend.ts';
import { choosePort } from '../../rdma/rdma-port.ts';
import { UcxDevice } from './ucx-device.ts';

/**
 * Fails with WL_UNSUPPORTED without libucp, without a port for RDMA, and where UCX_TLS allows no transport that a device
 * checks; with WL_CONFIG for settings that name what this host does not have.
 */
export async function createBackend(context: BackendContext): Promise<Backend<'ucx'>> {
  // Before anything is made that would have to be closed.
  openUcx();
  const { rail, controlHost = context.host } = choosePort(context.settings);
  const device = new UcxDevice(rail, context.settings);
  return openRdmaBackend(context, { name: 'ucx', device, host: controlHost });
}
