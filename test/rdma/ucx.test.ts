// Boots a guest with RDMA devices and runs the tests of the backend ucx there, which drives such devices alone.
import test from 'node:test';
import { guestOptions, runGuest } from './support/run-guest.ts';

// UCX throws away the datagrams of soft-RoCE by which it connects, unless it does not look at their address.
const variables = { UCX_UD_VERBS_ETH_DGID_CHECK: 'n' };

test('the backend ucx over soft-RoCE, in a guest', guestOptions, (t) => runGuest(t, 'ucx', variables));
