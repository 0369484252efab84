// How metadata name memory that is staged: a number, a key, and how the owner's staging thread is reached.
import { Block } from '../../abi/layout.ts';
import { STAGED_REGION_MAGIC, stagedRegionInfo, STAGING_VERSION } from './wire-layout.ts';
import { WeftlineError } from '../../core/errors.ts';

export interface StagedRegionName {
  readonly number: number;
  readonly key: number;
  readonly connectionInfo: Uint8Array;
}

export function encodeStagedRegion({ number, key, connectionInfo }: StagedRegionName): Uint8Array {
  const bytes = new Uint8Array(stagedRegionInfo.size + connectionInfo.length);
  const block = Block.over(stagedRegionInfo, bytes);
  block.set('magic', STAGED_REGION_MAGIC);
  block.set('version', STAGING_VERSION);
  block.set('number', number);
  block.set('key', key);
  block.set('connectionBytes', connectionInfo.length);
  bytes.set(connectionInfo, stagedRegionInfo.size);
  return bytes;
}

/** undefined if the bytes name memory that is not staged. Fails with WL_PROTOCOL for memory that another version stages. */
export function decodeStagedRegion(info: Uint8Array): StagedRegionName | undefined {
  if (info.length <= stagedRegionInfo.size) return undefined;
  const block = Block.over(stagedRegionInfo, info);
  if (block.get('magic') !== STAGED_REGION_MAGIC) return undefined;
  if (block.get('connectionBytes') !== info.length - stagedRegionInfo.size) return undefined;
  const version = block.get('version');
  if (version !== STAGING_VERSION) {
    throw new WeftlineError(
      'WL_PROTOCOL',
      `The peer stages this memory by version ${version}, this side by ${STAGING_VERSION}: use the same weftline on both sides`,
      { details: { version, expected: STAGING_VERSION } },
    );
  }
  return {
    number: block.get('number'),
    key: block.get('key'),
    connectionInfo: info.slice(stagedRegionInfo.size),
  };
}
