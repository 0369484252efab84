// How metadata name staged memory: what was written is read again, other memory is told apart, other versions are refused.
import assert from 'node:assert/strict';
import test from 'node:test';
import {
  decodeStagedRegion,
  encodeStagedRegion,
  stagedRegionInfo,
  STAGING_VERSION,
} from '#lib/agent/staging/staged-region.js';
import { withCode } from '../../../support/with-code.ts';

const name = { number: 3, key: 2 ** 40 + 1, connectionInfo: Uint8Array.of(1, 2, 3) };

test('a staged region is read as it was written, and other bytes name none', () => {
  assert.deepEqual(decodeStagedRegion(encodeStagedRegion(name)), name);
  assert.equal(decodeStagedRegion(new Uint8Array(64)), undefined);
});

test('a region that another version stages is refused, with both versions', () => {
  for (const version of [0, STAGING_VERSION + 1]) {
    const bytes = encodeStagedRegion(name);
    new DataView(bytes.buffer).setUint32(stagedRegionInfo.offset.version, version, true);
    assert.throws(
      () => decodeStagedRegion(bytes),
      withCode('WL_PROTOCOL', new RegExp(`version ${version}, this side by ${STAGING_VERSION}`)),
    );
  }
});
