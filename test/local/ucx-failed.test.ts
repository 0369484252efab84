// Workers of UCX that have failed: over RDMA they give up no memory that a device may still use. Skipped without libucp.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { WeftlineError } from 'weftline';
import { UcxDriver } from '#lib/agent/backends/ucx/ucx-driver.js';
import { UcxDrivers } from '#lib/agent/backends/ucx/ucx-drivers.js';
import { chooseTransports } from '#lib/agent/backends/ucx/ucx-transports.js';
import { NativeBlock } from '#lib/native/native-block.js';
import { WakeWord } from '#lib/threads/wake-word.js';
import { whyNoUcx } from './support/ucx-side.js';

const skip = whyNoUcx();
const timedOut = {
  code: 'WL_TIMEOUT',
  message: /^UCX does not work any more \(it broke\), but RDMA devices may still/,
};

/** Without RDMA, but as if there were some. */
function setUp(usesDevices: boolean) {
  const around = { env: {}, host: '127.0.0.1', rdmaPorts: [], interfaces: {} };
  const transports = { ...chooseTransports(around), usesDevices };
  const made: UcxDriver[] = [];
  const drivers = new UcxDrivers(() => {
    const driver = new UcxDriver({ ownThread: false, wake: new WakeWord(), spinUs: 0, transports, patienceMs: 50 });
    made.push(driver);
    return driver;
  }, true);
  const { address, bytes: view } = new NativeBlock(4096);
  const [used, unused] = [1, 2].map((key) => drivers.register({ address, bytes: 4096, key, view }).number) as [
    number,
    number,
  ];
  const [driver] = made as [UcxDriver];
  driver.tables.regionUses[used] = 1;
  const release = (region: number): Promise<void> => drivers.release(region, () => {});
  return { driver, drivers, release, used, unused };
}

describe('ucx: a worker that has failed', { skip }, () => {
  test('over RDMA keeps its memory, and once it is closed what UCX has not returned', async () => {
    const { driver, drivers, release, used, unused } = setUp(true);
    driver.failure = new WeftlineError('WL_NATIVE', 'it broke');
    for (const region of [used, unused]) await assert.rejects(release(region), timedOut);
    await drivers.close();
    assert.equal(driver.isOver, false);
    await assert.rejects(release(used), timedOut);
    await release(unused);
  });

  test('over TCP and shared memory gives all up: nothing moves without a thread', async () => {
    const { driver, drivers, release, used, unused } = setUp(false);
    driver.failure = new WeftlineError('WL_NATIVE', 'it broke');
    for (const region of [used, unused]) await release(region);
    await drivers.close();
    assert.equal(driver.isOver, true);
  });

  test('a worker that was destroyed keeps nothing, over RDMA either', async () => {
    const { driver, drivers, release, used } = setUp(true);
    await drivers.close();
    assert.equal(driver.isOver, true);
    await release(used);
  });
});
