// Boots a guest with RDMA devices and runs the tests of the transport over queue pairs there.
import test from 'node:test';
import { guestOptions, runGuest } from './support/run-guest.ts';

test('the transport over soft-RoCE, in a guest', guestOptions, (t) => runGuest(t, 'transport-main'));
