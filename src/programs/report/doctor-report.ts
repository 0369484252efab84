// The table that `weftline doctor` prints.
import Table from 'cli-table3';
import type { Examination } from '../doctor/doctor.ts';
import { plainTable } from './plain-table.ts';

/** A table of all findings, or of those that are not ok, then what to do about these. */
export function doctorReport(examination: Examination, { onlyShort = false } = {}): string {
  const table = new Table({ head: ['what', 'status', 'found'], ...plainTable });
  for (const { name, status, value } of examination.findings) {
    if (!onlyShort || status !== 'ok') table.push([name, status, value]);
  }
  const advice = examination.findings
    .filter((finding) => finding.advice !== undefined)
    .map((finding) => `  ${finding.name}: ${finding.advice}`);
  const verdict = examination.cpuReady ? 'CPU ranks can run here.' : 'CPU ranks cannot run here.';
  const shown = table.length === 0 ? [] : [table.toString()];
  return [...shown, ...(advice.length === 0 ? [] : ['What to do:', ...advice]), verdict, ''].join('\n');
}
