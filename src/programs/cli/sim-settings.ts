// Settings of simulated hosts: what the user has set, and otherwise what suits them better than threads that share cores.
import { readSettings, type SettingName, type Settings, settingsTable } from '../../settings/settings.ts';
import { usualSettings } from '../sim/simulation.ts';

interface SimSettingsOptions {
  /** Gbps of a host, all its rails together. */
  readonly rate: number;
  readonly rails: number;
  /** If a flag of its own names it. */
  readonly congestion?: Settings['transportCongestion'] | undefined;
}

export function simSettings({ rate, rails, congestion }: SimSettingsOptions): Partial<Settings> {
  const usual = usualSettings(rate, rails);
  const wanted = readSettings();
  const set = Object.keys(usual).filter((name) => process.env[settingsTable[name as SettingName].env] !== undefined);
  return {
    ...wanted,
    ...usual,
    ...Object.fromEntries(set.map((name) => [name, wanted[name as SettingName]])),
    ...(congestion === undefined ? {} : { transportCongestion: congestion }),
  };
}
