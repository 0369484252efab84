// Makes the engine of an EpLowLatency on CPU ranks of one host: the ranks agree, then make windows together, or one joins again.
import { agreeOn } from '../../../collective/agree.ts';
import { describeCall } from '../../../collective/calls.ts';
import type { CallWait, Deadline } from '../../../core/deadline.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { asWeftlineError } from '../../../core/errors.ts';
import { requireRoom } from '../../../windows/room.ts';
import { SymmetricWindow, type SymmetricWindowOptions } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import { SoloGroup } from '../../../world/solo-group.ts';
import type { LowLatencyEngine } from '../low-latency-engine.ts';
import type { LowLatencyScope } from '../low-latency-scope.ts';
import {
  comparableConfig,
  type LowLatencyConfig,
  lowLatencySize,
  withLowLatencyDefaults,
} from '../low-latency-size.ts';
import { requireOneHost } from '../require-one-host.ts';
import type { AnnouncementBoard } from '../members/announcement-board.ts';
import { attachWindow, joinOrCreate } from '../members/join-or-create.ts';
import { CpuLowLatencyEngine } from './cpu-low-latency-engine.ts';
import { makeLowLatencyTables } from './low-latency-tables.ts';
import { rehearsalConfig, rehearse } from './rehearse.ts';

const what = 'EpLowLatency';

export interface CpuLowLatencyOptions {
  readonly group: RankGroup;
  readonly device: CpuDevice;
  /** As the caller gave it, and with defaults. */
  readonly given: LowLatencyConfig;
  readonly config: Required<LowLatencyConfig>;
}

/** An engine, and the number of its first dispatch. */
export interface CpuLowLatency {
  readonly scope: LowLatencyScope<CpuDevice>;
  readonly engine: LowLatencyEngine;
  readonly next: number;
}

/** Collective: agrees on the configuration, makes the tables and the window. Of an elastic object a rank whose former process did so joins it. */
export async function createCpuLowLatency(
  options: CpuLowLatencyOptions,
  wait: CallWait & { readonly deadline: Deadline },
): Promise<CpuLowLatency> {
  const { group, config } = options;
  if (!config.elastic || group.size === 1) return (await createTogether(options, wait)).made;
  return joinOrCreate(group, {
    create: (board) => createFirst(options, board, wait),
    join: (board) => joinAgain(options, board, wait),
  });
}

async function createFirst(
  options: CpuLowLatencyOptions,
  board: AnnouncementBoard,
  wait: CallWait,
): Promise<CpuLowLatency> {
  const { made, window } = await createTogether(options, wait);
  try {
    await board.announce(window, options.config);
    return made;
  } catch (error) {
    await made.engine.close();
    throw error;
  }
}

async function createTogether(
  { group, device, given, config }: CpuLowLatencyOptions,
  wait: CallWait,
): Promise<{ readonly made: CpuLowLatency; readonly window: SymmetricWindow }> {
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
    const window = await SymmetricWindow.create({ ...wait, ...windowOf(group, device, size.bytes) });
    const scope = { group, device, config: Object.freeze({ ...config }), size };
    return { window, made: { scope, engine: new CpuLowLatencyEngine(scope, { window, tables }), next: 1 } };
  } catch (error) {
    tables[Symbol.dispose]();
    throw error;
  }
}

/** Not collective: in the place of this rank's former process. Resolves once an active rank has connected it. */
async function joinAgain(
  options: CpuLowLatencyOptions,
  board: AnnouncementBoard,
  wait: CallWait & { readonly deadline: Deadline },
): Promise<CpuLowLatency> {
  const { group, device, given, config } = options;
  const peers = await board.peers(config, wait);
  const size = lowLatencySize(given, group.size);
  // Behind the checks, whose errors name what the caller gave.
  await rehearseAlone(options);
  const tables = makeLowLatencyTables(device, config, group.size);
  let window: SymmetricWindow | undefined;
  let engine: CpuLowLatencyEngine | undefined;
  try {
    window = await attachWindow(windowOf(group, device, size.bytes), peers, wait.deadline);
    const scope = { group, device, config: Object.freeze({ ...config }), size };
    engine = new CpuLowLatencyEngine(scope, { window, tables });
    await board.announce(window, config);
    const next = await engine.membership!.rejoin({ deadline: wait.deadline, signal: wait.signal });
    return { scope, engine, next };
  } catch (error) {
    // It owns both, and memory that it has made ready since.
    if (engine !== undefined) engine.close();
    else {
      window?.[Symbol.dispose]();
      tables[Symbol.dispose]();
    }
    throw error;
  }
}

/** A rank that has no memory for it can still join. */
async function rehearseAlone({ group, device, given }: CpuLowLatencyOptions): Promise<void> {
  const solo = new SoloGroup(group);
  const small = rehearsalConfig(given, group.size);
  const options = { group: solo, device, given: small, config: withLowLatencyDefaults(small, solo.size) };
  try {
    const { made } = await createTogether(options, {});
    try {
      await rehearse(made.scope, made.engine);
    } finally {
      await made.engine.close();
    }
  } catch (error) {
    if (asWeftlineError(error).code !== 'WL_MEMORY') throw error;
  }
}

function windowOf(group: RankGroup, device: CpuDevice, bytes: number): SymmetricWindowOptions {
  return { group, device, name: 'low-latency', bytes, describeCall };
}
