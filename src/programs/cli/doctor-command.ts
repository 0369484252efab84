// weftline doctor: what this machine has and lacks; with --rdma its devices and ports, and which of them is used.
import { type Command, Option } from 'commander';
import { WeftlineError } from '../../core/errors.ts';
import { examine, thisMachine, examineRdma, type Examination, type RdmaExamination } from '../doctor/doctor.ts';
import { rdmaSettingsTable } from '../../settings/settings.ts';
import { checkUsage, exitCodes } from './exit-codes.ts';
import { Output, type OutputFlags } from './output.ts';
import { addSettingOptions } from './setting-options.ts';
import type { RdmaDevice, RdmaPort, RdmaRail } from '../../rails/rdma-choice.ts';
import { table, type View } from '../report/view.ts';

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

// What people read of it.

/** A table of all findings, or of those that are not ok, then what to do about these. */
export function doctorView({ findings, cpuReady }: Examination, { onlyShort = false } = {}): View {
  const shown = findings.filter(({ status }) => !onlyShort || status !== 'ok');
  const advised = findings.filter(({ advice }) => advice !== undefined);
  return {
    title: 'This machine',
    parts: [
      shown.length === 0
        ? []
        : table(shown, [
            { head: 'what', of: ({ name }) => name },
            { head: 'status', of: ({ status }) => status },
            { head: 'found', of: ({ value }) => value },
          ]),
      advised.length > 0 && 'What to do:',
      advised.map(({ name, advice }) => `  ${name}: ${advice}`),
      cpuReady ? 'CPU ranks can run here.' : 'CPU ranks cannot run here.',
    ],
  };
}

/** All bits of a word of 64. */
const NO_LIMIT = 2 ** 64;

/** Attributes under the names that libibverbs and its tools give them. */
export function rdmaView(examination: RdmaExamination): View {
  return {
    title: 'RDMA devices',
    parts: [
      examination.devices.flatMap((device) => [
        attributeTable(device.name, deviceRows(device)),
        ...device.ports.map((port) => attributeTable(`${device.name} port ${port.number}`, portRows(port))),
      ]),
      choiceLines(examination),
    ],
  };
}

type Rows = readonly (readonly [name: string, value: string | number])[];

function attributeTable(title: string, rows: Rows): string {
  const [text] = table(rows, [
    { head: title, of: ([name]) => name },
    { head: '', of: ([, value]) => String(value) },
  ]);
  return text as string;
}

function deviceRows({ problem, attributes, device }: RdmaDevice): Rows {
  return [
    ['PCI device', device?.address ?? 'none'],
    ['NUMA node', device?.numaNode ?? 'unknown'],
    ...(problem === undefined ? [] : [['problem', problem] as const]),
    ...attributeRows(attributes ?? {}),
  ];
}

function portRows({ attributes: { gigabitsPerSecond, maxMtuBytes, activeMtuBytes, ...all }, gids }: RdmaPort): Rows {
  return [
    ...attributeRows({ ...all, maxMtu: maxMtuBytes, activeMtu: activeMtuBytes }),
    ['speed', `${gigabitsPerSecond} Gbit/s`],
    ...gids.map(
      ({ index, gid, type, interface: name }) =>
        [`GID ${index}`, `${gid}, ${type}${name === undefined ? '' : `, ${name}`}`] as const,
    ),
  ];
}

const shownAs: Readonly<Record<string, (value: string | number) => string>> = {
  nodeGuid: (guid) => `0x${guid}`,
  sysImageGuid: (guid) => `0x${guid}`,
  maxMrSize: (bytes) => (Number(bytes) >= NO_LIMIT ? 'no limit' : hex(bytes)),
  pageSizeCap: hex,
  vendorId: hex,
  portCapFlags: hex,
  activeWidth: (lanes) => `${lanes}X`,
};

function attributeRows(attributes: object): Rows {
  return Object.entries(attributes as Readonly<Record<string, string | number>>).map(([name, value]) => [
    name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    shownAs[name]?.(value) ?? value,
  ]);
}

function choiceLines({ choice, settings, gpuMemory = [] }: RdmaExamination): string[] {
  if (choice === undefined) return [];
  const { rails, reason, others, gpus, control } = choice;
  const [best, ...further] = rails;
  const used =
    best === undefined
      ? []
      : [
          `Used: ${nameOf(best)}: ${reason}.`,
          `Its address: GID ${best.gid.index}, ${best.gid.gid}: ${best.gidReason}.`,
        ];
  return [
    ...used,
    ...further.map((rail) => `Also: ${nameOf(rail)}, GID ${rail.gid.index} (${rail.gidReason}).`),
    ...others.map(
      ({ name, port, reason: why }) => `Not used: ${name}${port === undefined ? '' : ` port ${port}`}: ${why}.`,
    ),
    ...gpus.map(({ gpu, rail, port, distance }) =>
      distance === undefined
        ? `GPU ${gpu}: no RDMA device has a PCI device.`
        : `GPU ${gpu}: ${rail} port ${port} (${distance.relation}, ${distance.hops} hops).`,
    ),
    ...(gpus.length === 0 ? ['No NVIDIA GPU on this machine.'] : []),
    ...gpuMemory.map(
      ({ gpu, device, way, reason: why, flush }) =>
        `Memory of GPU ${gpu} by ${device}: ${way}, because ${why}${way === 'pinned' ? '' : `; ${flushWords[flush]}`}.`,
    ),
    `Queue pairs: ${settings.rdmaService}; traffic class ${settings.rdmaTrafficClass}; ${settings.rdmaRelaxedOrdering ? 'relaxed' : 'strict'} ordering on PCI.`,
    control === undefined
      ? 'Peers meet at the addresses at which they call each other.'
      : `Peers meet over ${control.name} (${control.addresses.join(', ')}).`,
  ];
}

const flushWords = {
  read: 'what arrives is flushed by a read, because this GPU does not show it in order',
  none: 'what arrives needs no flush, because this GPU shows it in order',
} as const;

function nameOf({ name, port, gigabitsPerSecond, mtuBytes }: RdmaRail): string {
  return `${name} port ${port} (${gigabitsPerSecond} Gbit/s, MTU ${mtuBytes})`;
}

function hex(value: string | number): string {
  return `0x${Number(value).toString(16)}`;
}
