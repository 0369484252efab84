import assert from 'node:assert/strict';
import test from 'node:test';
import { bootIdentity, hostIdentity, machineIdentity } from '#lib/world/host-identity.js';

const rankOf = (rank: number, hosts?: string): Record<string, string> => ({
  WEFTLINE_RANK: String(rank),
  WEFTLINE_WORLD_SIZE: '4',
  WEFTLINE_LOCAL_RANK: String(rank),
  WEFTLINE_LOCAL_WORLD_SIZE: '4',
  WEFTLINE_MASTER_PORT: '29500',
  ...(hosts === undefined ? {} : { WEFTLINE_HOSTS: hosts }),
});

test('hostIdentity() is the same for the same host', () => {
  assert.equal(hostIdentity(), hostIdentity());
  assert.equal(hostIdentity().split('/').length, 3);
  assert.equal(hostIdentity(rankOf(0)), machineIdentity());
});

test('the setting hosts gives ranks of one machine the identities of several', () => {
  const identities = [0, 1, 2, 3].map((rank) => hostIdentity(rankOf(rank, '3+1')));
  assert.equal(new Set(identities.slice(0, 3)).size, 1);
  assert.notEqual(identities[3], identities[0]);
  const boots = [0, 1, 2, 3].map((rank) => bootIdentity(rankOf(rank, '2')));
  assert.deepEqual([boots[0] === boots[1], boots[1] === boots[2]], [true, false]);
  // A process that is not a rank pretends nothing.
  assert.equal(hostIdentity({ WEFTLINE_HOSTS: '2' }), machineIdentity());
  assert.throws(() => hostIdentity(rankOf(0, '5')), { code: 'WL_CONFIG', message: /WEFTLINE_HOSTS/ });
  const slurm = {
    SLURM_STEP_ID: '0',
    SLURM_PROCID: '1',
    SLURM_NTASKS: '4',
    SLURM_STEP_NUM_NODES: '2',
    MASTER_ADDR: 'a',
  };
  assert.throws(() => hostIdentity({ ...slurm, SLURM_JOB_ID: '7', WEFTLINE_HOSTS: '2' }), {
    code: 'WL_CONFIG',
    message: /slurm does not say how many ranks this machine has/,
  });
});
