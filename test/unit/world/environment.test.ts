import assert from 'node:assert/strict';
import test from 'node:test';
import { type Environment, expandNodeList, isRank, readEnvironment } from '#lib/world/environment.js';

const ours = {
  WEFTLINE_RANK: '2',
  WEFTLINE_WORLD_SIZE: '8',
  WEFTLINE_LOCAL_RANK: '2',
  WEFTLINE_LOCAL_WORLD_SIZE: '4',
  WEFTLINE_MASTER_ADDR: 'node0',
  WEFTLINE_MASTER_PORT: '29500',
  WEFTLINE_TOKEN: 'secret',
  WEFTLINE_JOB_ID: 'job1',
  WEFTLINE_LAUNCHER_PID: '77',
  WEFTLINE_STORE: 'node0:29500',
  WEFTLINE_FAILURE_LOG: '/dev/shm/log',
};
const torchrun = {
  RANK: '5',
  WORLD_SIZE: '6',
  LOCAL_RANK: '2',
  LOCAL_WORLD_SIZE: '3',
  MASTER_ADDR: 'trainer-0',
  MASTER_PORT: '29400',
  TORCHELASTIC_RUN_ID: 'run',
};
const slurm = {
  SLURM_PROCID: '3',
  SLURM_NTASKS: '99',
  SLURM_STEP_NUM_TASKS: '4',
  SLURM_LOCALID: '1',
  SLURM_STEP_NUM_NODES: '2',
  SLURM_STEP_NODELIST: 'gpu[08-09,17]',
  SLURM_JOB_ID: '4711',
  SLURM_STEP_ID: '0',
};
const openmpi = {
  OMPI_COMM_WORLD_RANK: '1',
  OMPI_COMM_WORLD_SIZE: '2',
  OMPI_COMM_WORLD_LOCAL_RANK: '1',
  OMPI_COMM_WORLD_LOCAL_SIZE: '2',
  PMIX_NAMESPACE: 'prterun-host-1@1',
};

test('readEnvironment() reads the variables of our launcher', () => {
  const { scope, ...found } = readEnvironment(ours);
  assert.match(scope, /^[0-9a-f]{64}$/);
  assert.deepEqual(found, {
    source: 'weftline',
    rank: 2,
    size: 8,
    localRank: 2,
    localSize: 4,
    host: 'node0',
    port: 29500,
    token: 'secret',
    jobPrefix: 'job1',
    launcherPid: 77,
    launcherServes: true,
    failureLog: '/dev/shm/log',
  });
});

test('a job that a rank of the launcher starts itself has neither its store nor its failure log', () => {
  for (const own of [{ WEFTLINE_MASTER_PORT: '29501' }, { WEFTLINE_MASTER_ADDR: 'node1' }]) {
    const { launcherServes, failureLog } = readEnvironment({ ...ours, ...own });
    assert.deepEqual([launcherServes, failureLog], [false, undefined]);
  }
});

test("readEnvironment() reads torchrun's variables and leaves its agent's port alone", () => {
  const found = readEnvironment(torchrun);
  assert.deepEqual(
    [found.source, found.rank, found.size, found.localRank, found.localSize, found.host, found.port],
    ['torchrun', 5, 6, 2, 3, 'trainer-0', 29400],
  );
  assert.equal(readEnvironment({ ...torchrun, TORCHELASTIC_USE_AGENT_STORE: 'True' }).port, 29401);
  assert.equal(readEnvironment({ ...torchrun, TORCHELASTIC_USE_AGENT_STORE: 'False' }).port, 29400);
});

test("readEnvironment() reads Slurm's step, its first host, and a port that all ranks derive alike", () => {
  const found = readEnvironment(slurm);
  assert.deepEqual([found.source, found.rank, found.size, found.localRank, found.host], ['slurm', 3, 4, 1, 'gpu08']);
  const other = readEnvironment({ ...slurm, SLURM_PROCID: '0', SLURM_LOCALID: '0' });
  assert.deepEqual([other.port, other.scope, other.jobPrefix], [found.port, found.scope, found.jobPrefix]);
  assert.ok(found.port >= 15_000 && found.port < 30_000);
  const next = readEnvironment({ ...slurm, SLURM_JOB_ID: '4712' });
  assert.notEqual(next.scope, found.scope);
  assert.deepEqual([found.token, readEnvironment({ ...slurm, WEFTLINE_TOKEN: ' t ' }).token], ['', 't']);
  assert.equal(readEnvironment({ ...slurm, MASTER_PORT: '1234', MASTER_ADDR: 'other' }).port, 1234);
  assert.equal(readEnvironment({ ...slurm, MASTER_PORT: '1234', MASTER_ADDR: 'other' }).host, 'other');
  assert.equal(readEnvironment({ ...slurm, SLURM_STEP_NUM_NODES: '1' }).host, '127.0.0.1');
});

test('a batch script that Slurm runs outside of srun is alone', () => {
  const { SLURM_STEP_ID: _id, SLURM_STEP_NODELIST: _list, ...batch } = slurm;
  assert.equal(readEnvironment(batch).source, 'single');
});

test("readEnvironment() reads Open MPI's variables", () => {
  const found = readEnvironment(openmpi);
  assert.deepEqual(
    [found.source, found.rank, found.size, found.localRank, found.localSize, found.host],
    ['openmpi', 1, 2, 1, 2, '127.0.0.1'],
  );
  const many = { ...openmpi, OMPI_COMM_WORLD_SIZE: '4' };
  assert.throws(() => readEnvironment(many), { code: 'WL_CONFIG', message: /MASTER_ADDR is missing/ });
  assert.equal(readEnvironment({ ...many, MASTER_ADDR: 'head' }).host, 'head');
});

test('the sources are tried in order, empty variables count as absent', () => {
  const all: Environment = { ...openmpi, ...slurm, ...torchrun, ...ours };
  assert.equal(readEnvironment(all).source, 'weftline');
  const without = { ...all, WEFTLINE_RANK: '', WEFTLINE_WORLD_SIZE: ' ' };
  assert.equal(readEnvironment(without).source, 'torchrun');
  // RANK alone is too common a word to mean torchrun.
  assert.equal(readEnvironment({ ...without, WORLD_SIZE: undefined }).source, 'slurm');
  assert.equal(readEnvironment({ ...without, RANK: '', SLURM_PROCID: '' }).source, 'openmpi');
  assert.deepEqual([readEnvironment({ RANK: '1' }).source, readEnvironment({}).size], ['single', 1]);
});

test('isRank() is about being one of several, or started by weftline', () => {
  assert.equal(isRank({}), false);
  assert.equal(isRank(torchrun), true);
  assert.equal(isRank({ ...slurm, SLURM_PROCID: '0', SLURM_LOCALID: '0', SLURM_STEP_NUM_TASKS: '1' }), false);
  assert.equal(isRank({ WEFTLINE_RANK: '0', WEFTLINE_WORLD_SIZE: '1' }), true);
});

test('ranks that are all on one node meet on the loopback address', () => {
  assert.equal(readEnvironment({ ...torchrun, WORLD_SIZE: '3', RANK: '2' }).host, '127.0.0.1');
});

test('a bad variable fails with WL_CONFIG naming it, its value and what is allowed', () => {
  const cases: readonly (readonly [Environment, RegExp])[] = [
    [{ ...ours, WEFTLINE_RANK: '8' }, /WEFTLINE_RANK: expected an integer from 0 to 7, got "8"/],
    [{ ...ours, WEFTLINE_RANK: undefined }, /WEFTLINE_RANK is missing/],
    [{ ...ours, WEFTLINE_WORLD_SIZE: '0' }, /WEFTLINE_WORLD_SIZE: expected .*, got "0"/],
    [{ ...ours, WEFTLINE_WORLD_SIZE: '1e3' }, /WEFTLINE_WORLD_SIZE: expected .*, got "1e3"/],
    [{ ...ours, WEFTLINE_LOCAL_RANK: '4' }, /WEFTLINE_LOCAL_RANK: expected an integer from 0 to 3, got "4"/],
    [{ ...ours, WEFTLINE_LOCAL_WORLD_SIZE: '9' }, /WEFTLINE_LOCAL_WORLD_SIZE/],
    [{ ...ours, WEFTLINE_MASTER_PORT: '70000' }, /WEFTLINE_MASTER_PORT: expected .*, got "70000"/],
    [{ ...ours, WEFTLINE_MASTER_PORT: '' }, /WEFTLINE_MASTER_PORT is missing/],
    [{ ...ours, WEFTLINE_JOB_ID: '../x' }, /WEFTLINE_JOB_ID/],
    [{ ...torchrun, MASTER_PORT: 'x' }, /MASTER_PORT: expected .*, got "x"/],
    [{ ...torchrun, MASTER_ADDR: undefined }, /MASTER_ADDR is missing/],
    [{ ...torchrun, RANK: '-1' }, /RANK: expected .*, got "-1"/],
    [{ ...slurm, SLURM_STEP_NODELIST: 'gpu[08-' }, /SLURM_STEP_NODELIST: expected .*, got "gpu\[08-"/],
    [{ ...slurm, SLURM_STEP_NUM_TASKS: '', SLURM_NTASKS: '' }, /SLURM_NTASKS is missing/],
    [{ ...openmpi, OMPI_COMM_WORLD_RANK: '2' }, /OMPI_COMM_WORLD_RANK: expected .*, got "2"/],
  ];
  for (const [environment, message] of cases) {
    assert.throws(() => readEnvironment(environment), { code: 'WL_CONFIG', message });
  }
});

const expand = (list: string) => expandNodeList('X', list).join(' ');

test("expandNodeList() understands Slurm's ranges, padding and several brackets", () => {
  assert.equal(expand('node[01-04,7]'), 'node01 node02 node03 node04 node7');
  assert.equal(expand('a,b[9-11],c-1.example'), 'a b9 b10 b11 c-1.example');
  assert.equal(expand('rack[1-2]n[3,05]x'), 'rack1n3x rack1n05x rack2n3x rack2n05x');
  for (const wrong of ['', 'a[', 'a[]', 'a[2-1]', 'a[1-999999999]', 'a[x]', 'a b', 'a,,b', 'a[0-9999]b[0-9999]']) {
    assert.throws(() => expandNodeList('X', wrong), { code: 'WL_CONFIG' }, wrong);
  }
});
