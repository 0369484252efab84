// How an elastic EpLowLatency comes to be on a rank: all make it together, or a process takes the place of its rank's former one.
import { setTimeout as sleep } from 'node:timers/promises';
import type { Deadline } from '../../../core/deadline.ts';
import { asWeftlineError } from '../../../core/errors.ts';
import type { SharedMemoryName } from '../../../windows/shared-memory.ts';
import { SymmetricWindow, type SymmetricWindowOptions } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import { AnnouncementBoard } from './announcement-board.ts';

interface WaysToBegin<T> {
  /** Collective. */
  create(board: AnnouncementBoard): Promise<T>;
  /** Not collective: in the place of this rank's former process. */
  join(board: AnnouncementBoard): Promise<T>;
}

export async function joinOrCreate<T>(group: RankGroup, ways: WaysToBegin<T>): Promise<T> {
  const board = new AnnouncementBoard(group);
  try {
    return await ((await board.isKnown()) ? ways.join(board) : ways.create(board));
  } catch (error) {
    board.giveUp();
    throw error;
  }
}

/** The window that the others have. The former process may still be ending. */
export async function attachWindow(
  of: SymmetricWindowOptions,
  peers: readonly SharedMemoryName[],
  deadline: Deadline,
): Promise<SymmetricWindow> {
  for (;;) {
    try {
      return SymmetricWindow.attach(of, peers);
    } catch (error) {
      if (asWeftlineError(error).code !== 'WL_RANK_TAKEN' || deadline.isOver) throw error;
    }
    await sleep(ATTACH_PAUSE_MS);
  }
}

const ATTACH_PAUSE_MS = 20;
