// weftline doctor: what this machine offers.
import type { Command } from 'commander';
import { examine } from '../doctor/doctor.ts';
import { thisMachine } from '../doctor/machine-probe.ts';
import { doctorReport } from '../report/doctor-report.ts';

export function addDoctorCommand(program: Command): void {
  program
    .command('doctor')
    .description('show what this machine offers, and what to do where it is short')
    .option('--json', 'print JSON')
    .action((options: { readonly json?: true }) => {
      const examination = examine(thisMachine());
      process.stdout.write(options.json ? `${JSON.stringify(examination, undefined, 2)}\n` : doctorReport(examination));
      if (!examination.cpuReady) process.exitCode = 1;
    });
}
