// Makes the engine of an EpBuffer on CPU ranks: the ranks agree, then make windows and, on several hosts, links together.
import { agreeOn } from '../../../group/agree.ts';
import { PeerMemory } from '../../../group/peer-memory.ts';
import { describeCall } from '../../../group/calls.ts';
import type { CallWait } from '../../../core/deadline.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import { checkMemoryBudget } from '../../../windows/memory-budget.ts';
import { bufferSize, type EpBufferConfig, type EpBufferSize } from '../buffer-size.ts';
import type { EpEngine } from '../engine.ts';
import { type EpTables, makeEpTables } from '../ep-tables.ts';
import type { EpScope } from '../scope.ts';
import { countedHosts, ranksOfHosts } from '../../across-hosts/hosts-of.ts';
import { checkRdmaBuffer } from '../../across-hosts/rdma-bytes.ts';
import type { CpuBufferNetwork } from './cpu-buffer-network.ts';
import type { EpBufferOptions } from '../ep-buffer-options.ts';
import { CpuEpEngine } from './cpu-engine.ts';

/** Collective: agrees on the configuration, makes the tables and the window. */
export async function createCpuEngine(
  group: RankGroup,
  device: CpuDevice,
  config: Required<EpBufferConfig>,
  options: EpBufferOptions & CallWait,
): Promise<{ readonly scope: EpScope; readonly engine: EpEngine }> {
  const { rdmaBuffer: memory, ...wait } = options;
  const prepare = (): { readonly size: EpBufferSize; readonly tables: EpTables } => {
    const size = bufferSize(config, group.size, ranksOfHosts(group));
    const parts = [{ name: 'windows', bytes: size.bytes, isShared: true }];
    if (size.network !== undefined) {
      const { bytes } = size.network;
      if (memory !== undefined) checkRdmaBuffer(memory, { device, bytes });
      else parts.push({ name: 'network side', bytes, isShared: false });
    }
    checkMemoryBudget('EpBuffer', parts, { group, device });
    return { size, tables: makeEpTables(device, config, { ranks: group.size, size }) };
  };
  const release = ({ tables }: ReturnType<typeof prepare>): void => tables[Symbol.dispose]();
  const agreement = { what: 'EpBuffer', config: { ...config, device: device.kind }, prepare, release };
  const { size, tables } = await agreeOn(group, agreement, wait);
  try {
    const of = { group, device, name: 'ep', bytes: size.bytes, describeCall };
    const window = await SymmetricWindow.create({ ...wait, ...of });
    const scope = { group, device, config: Object.freeze({ ...config }), size };
    try {
      const network = countedHosts(group) === 0 ? undefined : await openNetwork(scope, window, { ...wait, memory });
      const { barrier } = window;
      const peers = await PeerMemory.create('EpBuffer', { group, device, barrier }, wait);
      return { scope, engine: new CpuEpEngine(scope, { window, tables, network, memory: peers }) };
    } catch (error) {
      window[Symbol.dispose]();
      throw error;
    }
  } catch (error) {
    tables[Symbol.dispose]();
    throw error;
  }
}

async function openNetwork(...options: Parameters<typeof CpuBufferNetwork.create>): Promise<CpuBufferNetwork> {
  // Loaded here, so that ranks of one host never load what links to others need.
  const { CpuBufferNetwork: Network } = await import('./cpu-buffer-network.ts');
  return Network.create(...options);
}
