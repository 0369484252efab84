// The settings as options of a command: each option sets the variable, so that ranks that are started inherit it.
import { statSync } from 'node:fs';
import { resolve } from 'node:path';
import { type Command, Option } from 'commander';
import { invalidArgument } from '../../core/errors.ts';
import { readMetricsAddress } from '../../metrics/start-metrics.ts';
import { hostInterfaces, listRails } from '../../rails/rail-list.ts';
import { readSettings, type Setting, type SettingName, settingsTable } from '../../settings/settings.ts';
import { ranksOfHosts } from '../../world/host-identity.ts';
import { byteArgument } from './argument-values.ts';
import { requireWritableFolder } from './output.ts';
import { checkUsage } from './exit-codes.ts';

/** Checks of texts that are read where they are used, which may be in another process. */
const textChecks: { readonly [Name in SettingName]?: (text: string) => unknown } = {
  metrics: (text) => text === '' || readMetricsAddress(text),
  transportRails: (text) => listRails(text, hostInterfaces()),
};

/**
 * Adds the options of these settings; a wrong value is an error before the command begins: of usage if its flag was given.
 * @param defaults What the command takes where neither flag nor variable says anything, instead of the setting's own default.
 */
export function addSettingOptions(
  command: Command,
  names: readonly SettingName[],
  defaults: { readonly [Name in SettingName]?: number } = {},
): Command {
  for (const name of names) {
    const setting = settingsTable[name];
    const option = new Option(setting.flag, describe(setting, defaults[name])).env(setting.env);
    if (setting.kind === 'choice') option.choices(setting.choices);
    if (isSize(setting)) {
      const { min, max, leastButZero } = setting;
      option.argParser(byteArgument(leastButZero ?? min, max, { orZero: leastButZero !== undefined }));
    }
    command.addOption(option);
  }
  return command.hook('preAction', (_program, action) => {
    for (const name of names) {
      const setting = settingsTable[name];
      const usual = defaults[name];
      if (usual !== undefined) process.env[setting.env] ??= String(usual);
      const key = new Option(setting.flag).attributeName();
      if (action.getOptionValueSource(key) !== 'cli') continue;
      const value: unknown = action.getOptionValue(key);
      if (name === 'trace') process.env[setting.env] = traceFile(action, String(value));
      else process.env[setting.env] = String(value);
      checkUsage(action, () => textChecks[name]?.(String(value)));
    }
    checkUsage(action, () => readSettings());
  });
}

/** Known before anything starts; what this process starts may work in another folder. */
function traceFile(command: Command, file: string): string {
  checkUsage(command, () => {
    if (statSync(file, { throwIfNoEntry: false })?.isDirectory() === true)
      throw invalidArgument('--trace', file, 'a file, not a folder');
    requireWritableFolder(file);
  });
  return resolve(file);
}

/** Fails if the setting `hosts` does not fit the number of ranks of this machine, before they are started. */
export function checkHosts(command: Command, ranks: number): void {
  checkUsage(command, () => ranksOfHosts(readSettings().hosts, ranks));
}

/** The sentence with the default in words, as commander knows none: the value comes from readSettings(). */
function describe({ kind, sentence, default: value }: Setting, ofCommand?: number): string {
  return kind === 'number' || kind === 'choice' ? `${sentence} Default: ${ofCommand ?? value}.` : sentence;
}

/** Sizes may be written as 64K on the command line; the variable holds digits. */
function isSize(setting: Setting): setting is Extract<Setting, { kind: 'number' }> {
  return setting.kind === 'number' && setting.unit === 'bytes';
}
