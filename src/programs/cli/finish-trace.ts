// After a command that was traced: the process that started the others makes the trace of what all have left.
import { asWeftlineError } from '../../core/errors.ts';
import { printTo } from '../../core/print.ts';
import { isRank } from '../../world/environment.ts';
import { settingsTable } from '../../settings/settings.ts';

/** Never fails: the command has done its work. `nodes`: on how many the ranks ran. */
export async function finishTrace(nodes: number): Promise<void> {
  const file = process.env[settingsTable.trace.env] ?? '';
  if (file === '' || isRank()) return;
  try {
    const { collectTrace } = await import('../trace/collect-trace.ts');
    const { parts, unread, isWritten } = collectTrace(file, { launcher: process.pid, nodes });
    if (parts.length === 0) return;
    for (const why of unread) printTo(process.stderr, `weftline: ${isWritten ? '' : 'no trace yet: '}${why}\n`);
  } catch (error) {
    printTo(process.stderr, `weftline: the trace was not written: ${asWeftlineError(error).message}\n`);
  }
}
