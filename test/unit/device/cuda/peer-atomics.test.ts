// GPUs whose link carries no atomic operations are found and named, with a driver that is only pretended.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { requirePeerAtomics, whyNoPeerAtomics } from '#lib/device/cuda/device-properties.js';
import { pretendDriver } from '../../support/pretended-driver.ts';

const ADDRESS = 1 << 21;

function answer(value: number) {
  return (out: unknown): number => (((out as [number])[0] = value), 0);
}

/** GPU 1, which maps memory of GPU `owner`. */
function setUp({ owner, atomics }: { readonly owner: number; readonly atomics: number }) {
  const { driver, calls, status } = pretendDriver();
  status.cuDeviceGet = (out, ordinal) => answer(100 + Number(ordinal))(out);
  status.cuPointerGetAttribute = (out, attribute, address) => {
    assert.deepEqual([attribute, address], [9, ADDRESS]);
    return answer(owner)(out);
  };
  status.cuDeviceGetP2PAttribute = (out, attribute, device, peer) => {
    assert.deepEqual([attribute, device, peer], [3, 101, 100 + owner]);
    return answer(atomics)(out);
  };
  return { context: CudaContext.retain(1, driver), calls, status };
}

test('a link without atomic operations is named with both GPUs, and what to do', () => {
  const { context } = setUp({ owner: 0, atomics: 0 });
  assert.throws(() => requirePeerAtomics(context, ADDRESS, 'EpLowLatency'), {
    code: 'WL_UNSUPPORTED',
    message:
      /^EpLowLatency needs .* GPU 1 cannot add to memory of GPU 0: .* PCIe .* NVLink joins \("nvidia-smi topo -m"/,
  });
});

test('own memory and links that carry them are good, and a driver that cannot tell refuses nothing', () => {
  assert.equal(whyNoPeerAtomics(setUp({ owner: 0, atomics: 1 }).context, ADDRESS), undefined);
  const own = setUp({ owner: 1, atomics: 0 });
  assert.equal(whyNoPeerAtomics(own.context, ADDRESS), undefined);
  assert.ok(!own.calls.includes('cuDeviceGetP2PAttribute'));
  const dumb = setUp({ owner: 0, atomics: 0 });
  dumb.status.cuPointerGetAttribute = 1;
  assert.equal(whyNoPeerAtomics(dumb.context, ADDRESS), undefined);
});
