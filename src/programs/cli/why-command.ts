// weftline why: what the ranks of running jobs wait for, and which rank the others wait for.
import { type Command, Option } from 'commander';
import { printTo, printJson } from '../../core/print.ts';
import { conclude } from '../../world/watching/conclusion.ts';
import { OVERDUE_MS } from '../../world/watching/explain-signal.ts';
import { chooseAnyJobs } from '../../world/watching/find-jobs.ts';
import { describeJob } from '../../world/watching/job-text.ts';
import { JobWatcher } from '../../world/watching/job-view.ts';
import { integerArgument } from './argument-values.ts';
import { exitCodes } from './exit-codes.ts';
import { addWatchOptions, orUsage, type WatchFlags } from './watch-options.ts';

interface WhyFlags extends WatchFlags {
  readonly overdue: number;
}

export function addWhyCommand(program: Command): void {
  const command = program
    .command('why')
    .summary('say why a running job does not go on')
    .description(
      'Asks the ranks of the jobs that this user runs on this host what they wait for, since when and for whom, on all ' +
        'hosts of the job, and names the rank that the others wait for. A rank that does not answer is shown as the ' +
        'system sees it. The exit code is 1 if a rank is silent or overdue.',
    );
  addWatchOptions(command)
    .addOption(
      new Option('--overdue <ms>', 'how long others may wait for a rank before the exit code says so')
        .argParser(integerArgument(0, 2 ** 31 - 1))
        .default(OVERDUE_MS),
    )
    .addHelpText(
      'after',
      `
Examples:
  weftline why                 all jobs of this user that have ranks on this host
  weftline why 4711            the job of that launcher or rank
  kill -USR2 4711              the same text on the stderr of the launcher, or of one rank`,
    );
  command.action(async (wanted: string | undefined, { wait, json, overdue }: WhyFlags) => {
    const jobs = await orUsage(command, () => chooseAnyJobs(wanted, wait));
    const found = await Promise.all(
      jobs.map(async (job) => {
        const watcher = new JobWatcher(job);
        const view = await watcher.look(wait);
        watcher.close();
        return { view, conclusion: conclude(view, overdue) };
      }),
    );
    if (json === true) {
      const document = { jobs: found.map(({ view, conclusion }) => ({ ...view, conclusion })) };
      printJson(process.stdout, `${JSON.stringify(document, undefined, 2)}\n`);
    } else if (found.length === 0) printTo(process.stdout, 'No job of this user has ranks on this host.\n');
    else printTo(process.stdout, found.map(({ view, conclusion }) => describeJob(view, conclusion)).join('\n'));
    if (found.some(({ conclusion }) => conclusion.isTrouble)) process.exitCode = exitCodes.failure.code;
  });
}
