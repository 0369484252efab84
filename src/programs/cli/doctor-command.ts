// weftline doctor: what this machine offers.
import { type Command, Option } from 'commander';
import { examine } from '../doctor/doctor.ts';
import { thisMachine } from '../doctor/machine-probe.ts';
import { doctorReport } from '../report/doctor-report.ts';
import { exitCodes } from './exit-codes.ts';
import { Output, type OutputFlags } from './output.ts';

export function addDoctorCommand(program: Command): void {
  program
    .command('doctor')
    .description('show what this machine offers, and what to do where it is short')
    .addOption(new Option('--json [file]', 'write JSON; to stdout without a file, or with -').preset('-'))
    .option('--quiet', 'show only what is short')
    .action((flags: OutputFlags) => {
      const output = new Output(flags);
      const examination = examine(thisMachine());
      output.report(doctorReport(examination, { onlyShort: flags.quiet === true }), examination);
      if (!examination.cpuReady) process.exitCode = exitCodes.failure.code;
    });
}
