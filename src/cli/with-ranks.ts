// Commands that run on several ranks: the first call starts copies of the same command line, a copy joins and works.
import { isRank } from '../world/environment.ts';
import { launch } from '../world/launcher.ts';
import { join, type World } from '../world/world.ts';

/**
 * Not yet launched: starts `ranks` copies of this command line, rank 0 with this terminal, and sets process.exitCode.
 * Already a rank, of any launcher: joins, runs `main`, closes; an error of `main` is told to the other ranks and thrown.
 */
export async function withRanks(ranks: number, main: (world: World) => Promise<void>): Promise<void> {
  if (ranks > 1 && !isRank()) {
    const command = [process.execPath, ...process.execArgv, ...process.argv.slice(1)];
    const { exitCode } = await launch({ command, ranks, rawRank: 0 });
    process.exitCode = exitCode;
    return;
  }
  const world = await join();
  try {
    await main(world);
  } catch (error) {
    await world.close(error);
    throw error;
  }
  await world.close();
}
