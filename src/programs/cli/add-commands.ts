// Loads the commands that a command line needs: each brings its part of the library, and all together take half a second.
import type { Command } from 'commander';

/** Commands by name: `load` resolves with what adds the command to its parent. */
type CommandTable = Readonly<
  Record<string, () => Promise<(parent: Command, words: readonly string[]) => void | Promise<void>>>
>;

/**
 * Adds to `parent` the command that the first of `words` names, and hands it the other words; all commands of the table, in
 * its order, where that word names none, for help and errors speak of them all.
 */
export async function addCommands(parent: Command, table: CommandTable, words: readonly string[]): Promise<void> {
  const [name = '', ...rest] = words;
  const names = Object.hasOwn(table, name) ? [name] : Object.keys(table);
  for (const each of names) {
    const add = await table[each]?.();
    await add?.(parent, each === name ? rest : []);
  }
}
