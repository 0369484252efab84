// Collectives of CPU ranks: through slots and channels in the window of their host, and mirrors of them on other hosts.
import type { CallWait } from '../../core/deadline.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { agreeOn } from '../../group/agree.ts';
import { PeerMemory } from '../../group/peer-memory.ts';
import type { StepRunner } from '../../group/steps.ts';
import { checkMemoryBudget } from '../../windows/memory-budget.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { AlgorithmTable } from '../algorithm-table.ts';
import {
  type CollectiveCall,
  type CollectiveEngine,
  makeCollectiveCall,
  type PairMessage,
  type Route,
} from '../collective-call.ts';
import { StepGround } from './step-ground.ts';
import { CpuMover, type DataPlaces, MovementChoice, type Mover } from './movements.ts';
import { PairMessages } from './pair-messages.ts';
import { RankBoard } from './rank-board.ts';
import { StagedCall } from './staged-call.ts';
import {
  type CollectiveRegions,
  collectiveRegions,
  createMirroredWindow,
  type MirroredWindow,
  regionsAcrossHosts,
} from './window-regions.ts';

/** What an engine is made of, and owns. */
interface CpuCollectivesParts extends MirroredWindow {
  readonly group: RankGroup;
  readonly device: CpuDevice;
  readonly regions: CollectiveRegions;
  readonly table: AlgorithmTable;
  /** The mover and places of tensors that are not this device's. The engine owns them, as the rest. */
  readonly elsewhere?: { readonly mover: Mover; readonly places: DataPlaces };
  /** Memory of ranks that can read each other's tensors. */
  readonly memory: PeerMemory | undefined;
  readonly directBytes: number;
}

export class CpuCollectives implements CollectiveEngine {
  readonly routes: readonly Route[];
  readonly ordersCalls = false;
  readonly lastEvent = undefined;
  readonly #ground: StepGround;
  readonly #staged: StagedCall;
  readonly #pairs: PairMessages;
  readonly #runner: StepRunner;
  readonly #mover: Mover;

  constructor({ group, device, window, regions, table, across, elsewhere, memory, directBytes }: CpuCollectivesParts) {
    const { topology, rank: me } = group;
    const ground = new StepGround(group, device, { window, across, regions });
    const { parts, mirrors } = ground;
    const board = new RankBoard(device, parts, regions, mirrors);
    const routeTo = (rank: number): Route => (topology.hostOf(rank) === topology.hostIndex ? 'window' : 'network');
    this.routes = group.ranks.map((_, rank) => (rank === me ? 'self' : routeTo(rank)));
    this.#ground = ground;
    const choice = new MovementChoice(table, topology.hosts, me);
    const windows = { areShared: true, addresses: parts.addresses, outgoing: window.address };
    const { mover, places } = elsewhere ?? { mover: new CpuMover(device, group.size), places: windows };
    this.#mover = mover;
    const of = { parts, board, regions, mirrors, mover, places };
    const throwIfUnusable = (): void => ground.throwIfUnusable();
    const direct = memory && { memory, fromBytes: directBytes, throwIfUnusable };
    this.#staged = new StagedCall(device, { ...of, choice, direct, idle: makeCollectiveCall(group.size) });
    this.#pairs = new PairMessages(device, of);
    this.#runner = ground.runner(board.bells, ground);
  }

  throwIfUnusable(): void {
    this.#ground.throwIfUnusable();
  }

  run(call: CollectiveCall, wait: CallWait): Promise<void> | undefined {
    this.#staged.begin(call);
    return this.#runner.run(this.#staged, wait);
  }

  exchange(messages: readonly PairMessage[], wait: CallWait): Promise<void> | undefined {
    this.#pairs.begin(messages);
    return this.#runner.run(this.#pairs, wait);
  }

  /** All ranks of a host have the same memory anyway. */
  register(): Promise<void> {
    return Promise.resolve();
  }

  async close(): Promise<void> {
    try {
      await this.#ground.network?.close({ untilSourcesLeft: true });
    } finally {
      // ORDER: a mover may hold on to the window's memory.
      this.#mover[Symbol.dispose]();
      this.#ground.window[Symbol.dispose]();
    }
  }
}

// Makes the engine of a Communicator of CPU ranks: they agree, then make windows together, and links to other hosts.

interface CpuCollectivesOptions extends CallWait {
  readonly pieceBytes: number;
  readonly directBytes: number;
  readonly table: AlgorithmTable;
}

/** Collective; fails alike on all ranks. */
export async function createCpuCollectives(
  group: RankGroup,
  device: CpuDevice,
  { pieceBytes, directBytes, table, ...wait }: CpuCollectivesOptions,
): Promise<CollectiveEngine> {
  const what = 'Communicator';
  const { hosts } = group.topology;
  const { regions, all } = await agreeOn(
    group,
    {
      what,
      config: { pieceBytes, directBytes, algorithms: JSON.stringify(table), device: device.kind },
      prepare: () => {
        const own = collectiveRegions(group.size, pieceBytes);
        const laidOut = regionsAcrossHosts(own, group.size, hosts);
        checkMemoryBudget(what, [{ name: 'windows', bytes: laidOut.bytes, isShared: true }], { group, device });
        return { regions: own, all: laidOut };
      },
    },
    wait,
  );
  const of = { group, device, what, name: 'collectives', regions: all };
  const windows = await createMirroredWindow(of, wait);
  try {
    const { barrier } = windows.window;
    const memory = await PeerMemory.create(what, { group, device, barrier }, wait);
    return new CpuCollectives({ group, device, regions, table, memory, directBytes, ...windows });
  } catch (error) {
    // ORDER: peers write into the window until their way to it is closed.
    await windows.across?.network.close();
    windows.window[Symbol.dispose]();
    throw error;
  }
}
