// What `weftline doctor --rdma` prints: devices and ports with their attributes, then which port is used and why.
import Table from 'cli-table3';
import type { RdmaChoice, RdmaRail, RdmaSettings } from '../../rails/rdma-choice.ts';
import type { RdmaDevice, RdmaPort } from '../../rails/rdma-devices.ts';
import type { RdmaExamination } from '../doctor/rdma-examination.ts';
import { plainTable } from './plain-table.ts';

/** All bits of a word of 64. */
const NO_LIMIT = 2 ** 64;

/** Attributes under the names that libibverbs and its tools give them. */
export function rdmaReport({ devices, choice, settings, flush }: RdmaExamination): string {
  const tables = devices.flatMap((device) => [
    deviceTable(device),
    ...device.ports.map((port) => portTable(device, port)),
  ]);
  return [...tables, ...(choice === undefined ? [] : choiceLines(choice, settings, flush)), ''].join('\n');
}

function deviceTable({ name, problem, attributes, device }: RdmaDevice): string {
  const rows: (readonly [string, string | number])[] = [
    ['PCI device', device?.address ?? 'none'],
    ['NUMA node', device?.numaNode ?? 'unknown'],
  ];
  if (problem !== undefined) rows.push(['problem', problem]);
  if (attributes !== undefined) {
    const all = attributes;
    rows.push(
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
    );
  }
  return tableOf(name, rows);
}

function portTable({ name }: RdmaDevice, { number, attributes, gids }: RdmaPort): string {
  const all = attributes;
  return tableOf(`${name} port ${number}`, [
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
    ...gids.map((gid) => [`GID ${gid.index}`, `${gid.gid}, ${gid.type}${onInterface(gid.interface)}`] as const),
  ]);
}

function tableOf(title: string, rows: readonly (readonly [string, string | number])[]): string {
  const table = new Table({ head: [title, ''], ...plainTable });
  for (const [name, value] of rows) table.push([name, String(value)]);
  return table.toString();
}

function choiceLines(
  { rails, reason, others, gpus, control }: RdmaChoice,
  settings: RdmaSettings,
  flush: RdmaExamination['flush'],
): string[] {
  const [best] = rails;
  const lines: string[] = [];
  if (best !== undefined) {
    lines.push(
      `Used: ${nameOf(best)}: ${reason}.`,
      `Its address: GID ${best.gid.index}, ${best.gid.gid}: ${best.gidReason}.`,
    );
  }
  for (const rail of rails.slice(1)) lines.push(`Also: ${nameOf(rail)}, GID ${rail.gid.index} (${rail.gidReason}).`);
  for (const { name, port, reason: why } of others) {
    lines.push(`Not used: ${name}${port === undefined ? '' : ` port ${port}`}: ${why}.`);
  }
  for (const { gpu, rail, port, distance } of gpus) {
    const nearest =
      distance === undefined
        ? 'no RDMA device has a PCI device'
        : `${rail} port ${port} (${distance.relation}, ${distance.hops} hops)`;
    lines.push(`GPU ${gpu}: ${nearest}.`);
  }
  if (gpus.length === 0) lines.push('No NVIDIA GPU on this machine.');
  if (flush !== undefined) lines.push(`Writes into memory of a GPU would be flushed by ${flush.way}: ${flush.reason}.`);
  const ordering = settings.rdmaRelaxedOrdering ? 'relaxed' : 'strict';
  lines.push(
    `Queue pairs: ${settings.rdmaService}; traffic class ${settings.rdmaTrafficClass}; ${ordering} ordering on PCI.`,
    control === undefined
      ? 'Peers meet at the addresses at which they call each other.'
      : `Peers meet over ${control.name} (${control.addresses.join(', ')}).`,
  );
  return lines;
}

function nameOf({ name, port, gigabitsPerSecond, mtuBytes }: RdmaRail): string {
  return `${name} port ${port} (${gigabitsPerSecond} Gbit/s, MTU ${mtuBytes})`;
}

function onInterface(name: string | undefined): string {
  return name === undefined ? '' : `, ${name}`;
}

function hex(value: number): string {
  return `0x${value.toString(16)}`;
}
