// weftline doctor: what this machine offers.
import { type Command, Option } from 'commander';
import { WeftlineError } from '../../core/errors.ts';
import { examine } from '../doctor/doctor.ts';
import { thisMachine } from '../doctor/machine-probe.ts';
import { examineRdma } from '../doctor/rdma-examination.ts';
import { doctorView, rdmaView } from '../report/doctor-view.ts';
import { rdmaSettingsTable } from '../../settings/transport-settings-table.ts';
import { checkUsage, exitCodes } from './exit-codes.ts';
import { Output, type OutputFlags } from './output.ts';
import { addSettingOptions } from './setting-options.ts';

interface DoctorFlags extends OutputFlags {
  readonly rdma?: boolean;
}

const rdmaSettingNames = Object.keys(rdmaSettingsTable) as (keyof typeof rdmaSettingsTable)[];

export function addDoctorCommand(program: Command): void {
  const command = program
    .command('doctor')
    .description('show what this machine offers, and what to do where it is short')
    .addOption(new Option('--json [file]', 'write JSON; to stdout without a file, or with -').preset('-'))
    .option('--quiet', 'show only what is short')
    .option('--rdma', 'show every RDMA device and port instead, which of them would be used, and why');
  addSettingOptions(command, rdmaSettingNames);
  command.action((flags: DoctorFlags) => {
    const output = new Output(flags);
    if (flags.rdma === true) {
      const rdma = checkUsage(command, () => examineRdma(thisMachine()));
      output.report(rdmaView(rdma), rdma);
      const { rdmaReady, problem } = rdma;
      if (!rdmaReady) throw new WeftlineError('WL_UNSUPPORTED', `RDMA cannot be used: ${problem}`);
      return;
    }
    const examination = examine(thisMachine());
    output.report(doctorView(examination, { onlyShort: flags.quiet === true }), examination);
    if (!examination.cpuReady) process.exitCode = exitCodes.failure.code;
  });
}
