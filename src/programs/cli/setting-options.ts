// The settings as options of a command: each option sets the variable, so that ranks that are started inherit it.
import { type Command, Option } from 'commander';
import { readSettings, type SettingName, settingsTable } from '../../settings/settings.ts';

/** Adds the options of these settings; a wrong value fails with WL_CONFIG before the command begins. */
export function addSettingOptions(command: Command, names: readonly SettingName[]): Command {
  for (const name of names) {
    const setting = settingsTable[name];
    const option = new Option(setting.flag, setting.sentence).env(setting.env);
    if (setting.kind === 'choice') option.choices(setting.choices);
    // Shown in the help only: the value comes from readSettings().
    if (setting.kind === 'number' || setting.kind === 'choice') option.default(undefined, String(setting.default));
    command.addOption(option);
  }
  return command.hook('preAction', (_program, action) => {
    for (const name of names) {
      const setting = settingsTable[name];
      const key = new Option(setting.flag).attributeName();
      if (action.getOptionValueSource(key) !== 'cli') continue;
      const value: unknown = action.getOptionValue(key);
      process.env[setting.env] = String(value);
    }
    readSettings();
  });
}
