// What can be completed of a command line: the commands, their flags and the choices of those, from commander's tree.
import type { Command, Option } from 'commander';

export interface CompletionOption {
  /** With its dashes; so is `short`. */
  readonly long: string;
  readonly short?: string;
  readonly description: string;
  /** It takes a value: one of these, or any. */
  readonly value?: { readonly choices: readonly string[] };
}

export interface CompletionCommand {
  /** All words from the program's name on. */
  readonly words: string;
  readonly name: string;
  readonly description: string;
  readonly options: readonly CompletionOption[];
  readonly commands: readonly CompletionCommand[];
}

const MAX_DESCRIPTION = 70;

export function completionTree(command: Command, before = ''): CompletionCommand {
  const words = `${before}${command.name()}`;
  const help = command.createHelp();
  return {
    words,
    name: command.name(),
    description: brief(command.summary() || command.description()),
    options: help.visibleOptions(command).flatMap(describeOption),
    commands: command.commands.map((each) => completionTree(each, `${words} `)),
  };
}

/** The command and all below it. */
export function allCommands(command: CompletionCommand): CompletionCommand[] {
  return [command, ...command.commands.flatMap(allCommands)];
}

function describeOption({ long, short, description, required, optional, argChoices }: Option): CompletionOption[] {
  if (long == null) return [];
  return [
    {
      long,
      ...(short == null ? {} : { short }),
      description: brief(description),
      ...(required || optional ? { value: { choices: argChoices ?? [] } } : {}),
    },
  ];
}

function brief(text: string): string {
  const line = text.replaceAll(/\s+/g, ' ');
  return line.length > MAX_DESCRIPTION ? `${line.slice(0, MAX_DESCRIPTION - 1)}…` : line;
}
