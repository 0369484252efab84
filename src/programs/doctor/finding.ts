// What a check of this machine says.
import type { MachineProbe } from './machine-probe.ts';

export interface Finding {
  readonly name: string;
  /** `short`: there, but less than a typical configuration needs; `absent`: not there. */
  readonly status: 'ok' | 'short' | 'absent';
  readonly value: string;
  /** What to do, or what does not work without it. */
  readonly advice?: string;
  /** True when not even CPU ranks run without it. */
  readonly blocksCpu?: true;
}

export type Check = (machine: MachineProbe) => Finding;
