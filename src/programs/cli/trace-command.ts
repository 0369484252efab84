// weftline trace: what a trace says, and the trace itself out of the parts that processes have left.
import type { Command } from 'commander';
import { printTo } from '../../core/print.ts';
import { traceView } from '../report/trace-view.ts';
import { collectTrace } from '../trace/collect-trace.ts';
import { summarize } from '../../tracing/trace-summary.ts';
import { addReportOptions, Output, type OutputFlags } from './output.ts';

export function addTraceCommand(program: Command): void {
  const command = program
    .command('trace')
    .summary('say where the time of traced processes went')
    .description(
      'Summarises the trace that WEFTLINE_TRACE or --trace named: time by phase, the slowest rank, and who was last to ' +
        'enter the calls that ranks make together. Where processes have left FILE.HOST.PID.part, it makes FILE of them ' +
        'first: JSON for Perfetto and chrome://tracing.',
    )
    .argument('<file>', 'the file that WEFTLINE_TRACE or --trace named')
    .addHelpText(
      'after',
      `
Examples:
  weftline moe --trace moe.json && weftline trace moe.json
  WEFTLINE_TRACE=job.json torchrun --no-python --nproc-per-node 4 node train.js; weftline trace job.json`,
    );
  addReportOptions(command);
  command.action((file: string, flags: OutputFlags) => {
    const output = new Output(flags);
    const { parts, unread } = collectTrace(file);
    for (const why of unread) printTo(process.stderr, `weftline: left out: ${why}\n`);
    const summary = summarize(parts);
    // The timeline takes long, and is on the page alone.
    output.report(traceView(file, summary, flags.report === undefined ? [] : parts), { file, ...summary });
  });
}
