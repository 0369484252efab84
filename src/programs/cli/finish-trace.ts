// After a command that was traced: the process that started the others makes the trace of what all have left.
import { asWeftlineError } from '../../core/errors.ts';
import { printTo } from '../../core/print.ts';
import { isRank } from '../../world/environment.ts';
import { settingsTable } from '../../settings/settings.ts';

/** Never fails: the command has done its work. */
export async function finishTrace(): Promise<void> {
  const file = process.env[settingsTable.trace.env] ?? '';
  if (file === '' || isRank()) return;
  try {
    const { collectTrace } = await import('../trace/collect-trace.ts');
    const { parts, unread, isWritten } = collectTrace(file, process.pid);
    if (parts.length > 0 && !isWritten)
      for (const why of unread) printTo(process.stderr, `weftline: no trace yet: ${why}\n`);
  } catch (error) {
    printTo(process.stderr, `weftline: the trace was not written: ${asWeftlineError(error).message}\n`);
  }
}
