// Makes the engine of an EpLowLatency on CPU ranks of one host: the ranks agree, then make windows together.
import { agreeOn } from '../../../collective/agree.ts';
import { describeCall } from '../../../collective/calls.ts';
import type { CallWait } from '../../../core/deadline.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { requireRoom } from '../../../windows/room.ts';
import { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import type { LowLatencyEngine } from '../low-latency-engine.ts';
import type { LowLatencyScope } from '../low-latency-scope.ts';
import { comparableConfig, type LowLatencyConfig, lowLatencySize } from '../low-latency-size.ts';
import { requireOneHost } from '../require-one-host.ts';
import { CpuLowLatencyEngine } from './cpu-low-latency-engine.ts';
import { makeLowLatencyTables } from './low-latency-tables.ts';

export interface CpuLowLatencyOptions {
  readonly group: RankGroup;
  readonly device: CpuDevice;
  /** As the caller gave it, and with defaults. */
  readonly given: LowLatencyConfig;
  readonly config: Required<LowLatencyConfig>;
}

/** Collective: agrees on the configuration, makes the tables and the window. */
export async function createCpuLowLatency(
  { group, device, given, config }: CpuLowLatencyOptions,
  wait: CallWait,
): Promise<{ readonly scope: LowLatencyScope; readonly engine: LowLatencyEngine }> {
  const what = 'EpLowLatency';
  const { size, tables } = await agreeOn(
    group,
    {
      what,
      config: comparableConfig(config, device.kind),
      prepare: () => {
        requireOneHost(group);
        const sizes = lowLatencySize(given, group.size);
        requireRoom(what, [{ name: 'windows', bytes: sizes.bytes, isShared: true }], { group, device });
        return { size: sizes, tables: makeLowLatencyTables(device, config, group.size) };
      },
      release: (prepared) => prepared.tables[Symbol.dispose](),
    },
    wait,
  );
  try {
    const of = { group, device, name: 'low-latency', bytes: size.bytes, describeCall };
    const window = await SymmetricWindow.create({ ...wait, ...of });
    const scope = { group, device, config: Object.freeze({ ...config }), size };
    return { scope, engine: new CpuLowLatencyEngine(scope, { window, tables }) };
  } catch (error) {
    tables[Symbol.dispose]();
    throw error;
  }
}
