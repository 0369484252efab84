// What people read of `weftline doctor`: what this machine has and lacks, and of --rdma devices, ports and which of them is used.
import type { RdmaDevice, RdmaPort } from '../../rails/rdma-devices.ts';
import type { RdmaRail } from '../../rails/rdma-choice.ts';
import type { Examination } from '../doctor/doctor.ts';
import type { RdmaExamination } from '../doctor/rdma-examination.ts';
import { table, type View } from './view.ts';

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

function deviceRows({ problem, attributes: all, device }: RdmaDevice): Rows {
  return [
    ['PCI device', device?.address ?? 'none'],
    ['NUMA node', device?.numaNode ?? 'unknown'],
    ...(problem === undefined ? [] : [['problem', problem] as const]),
    ...(all === undefined
      ? []
      : ([
          ['fw_ver', all.fwVer],
          ['node_guid', `0x${all.nodeGuid}`],
          ['sys_image_guid', `0x${all.sysImageGuid}`],
          ['max_mr_size', all.maxMrSize >= NO_LIMIT ? 'no limit' : hex(all.maxMrSize)],
          ['page_size_cap', hex(all.pageSizeCap)],
          ['vendor_id', hex(all.vendorId)],
          ['vendor_part_id', all.vendorPartId],
          ['hw_ver', all.hwVer],
          ['max_qp', all.maxQp],
          ['max_qp_wr', all.maxQpWr],
          ['max_sge', all.maxSge],
          ['max_cq', all.maxCq],
          ['max_cqe', all.maxCqe],
          ['max_mr', all.maxMr],
          ['max_pd', all.maxPd],
          ['max_qp_rd_atom', all.maxQpRdAtom],
          ['max_res_rd_atom', all.maxResRdAtom],
          ['max_qp_init_rd_atom', all.maxQpInitRdAtom],
          ['atomic_cap', all.atomicCap],
          ['max_ah', all.maxAh],
          ['max_srq', all.maxSrq],
          ['max_srq_wr', all.maxSrqWr],
          ['phys_port_cnt', all.physPortCnt],
        ] as const)),
  ];
}

function portRows({ attributes: all, gids }: RdmaPort): Rows {
  return [
    ['state', all.state],
    ['phys_state', all.physState],
    ['link_layer', all.linkLayer],
    ['max_mtu', all.maxMtuBytes],
    ['active_mtu', all.activeMtuBytes],
    ['gid_tbl_len', all.gidTblLen],
    ['port_cap_flags', hex(all.portCapFlags)],
    ['max_msg_sz', all.maxMsgSz],
    ['lid', all.lid],
    ['sm_lid', all.smLid],
    ['lmc', all.lmc],
    ['max_vl_num', all.maxVlNum],
    ['sm_sl', all.smSl],
    ['active_width', `${all.activeWidth}X`],
    ['active_speed', all.activeSpeed],
    ['speed', `${all.gigabitsPerSecond} Gbit/s`],
    ...gids.map(
      ({ index, gid, type, interface: name }) =>
        [`GID ${index}`, `${gid}, ${type}${name === undefined ? '' : `, ${name}`}`] as const,
    ),
  ];
}

function choiceLines({ choice, settings, flush }: RdmaExamination): string[] {
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
    ...(flush === undefined ? [] : [`Writes into memory of a GPU would be flushed by ${flush.way}: ${flush.reason}.`]),
    `Queue pairs: ${settings.rdmaService}; traffic class ${settings.rdmaTrafficClass}; ${settings.rdmaRelaxedOrdering ? 'relaxed' : 'strict'} ordering on PCI.`,
    control === undefined
      ? 'Peers meet at the addresses at which they call each other.'
      : `Peers meet over ${control.name} (${control.addresses.join(', ')}).`,
  ];
}

function nameOf({ name, port, gigabitsPerSecond, mtuBytes }: RdmaRail): string {
  return `${name} port ${port} (${gigabitsPerSecond} Gbit/s, MTU ${mtuBytes})`;
}

function hex(value: number): string {
  return `0x${value.toString(16)}`;
}
