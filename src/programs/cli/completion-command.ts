// weftline completion: the script that lets a shell complete commands, flags and choices.
import { Argument, type Command, type Option } from 'commander';

const shells = { bash: bashCompletion, zsh: zshCompletion, fish: fishCompletion } as const;

/** `program` must have all its commands. */
export function addCompletionCommand(program: Command): void {
  program
    .command('completion')
    .summary('print a completion script for a shell')
    .description('Prints a script by which the shell completes commands, flags and their choices.')
    .addArgument(new Argument('<shell>').choices(Object.keys(shells)))
    .addHelpText(
      'after',
      `
Examples:
  source <(weftline completion bash)                     in ~/.bashrc
  source <(weftline completion zsh)                      in ~/.zshrc, after compinit
  weftline completion fish | source                      in ~/.config/fish/config.fish`,
    )
    .action((shell: keyof typeof shells) => {
      process.stdout.write(shells[shell](completionTree(program)));
    });
}

// What can be completed of a command line: the commands, their flags and the choices of those, from commander's tree.

interface CompletionOption {
  /** The flag with its dashes, as `short` has them. */
  readonly long: string;
  readonly short?: string;
  readonly description: string;
  /** It takes a value: one of these, or any. */
  readonly value?: { readonly choices: readonly string[] };
}

interface CompletionCommand {
  /** All words from the program's name on. */
  readonly words: string;
  readonly name: string;
  readonly description: string;
  readonly options: readonly CompletionOption[];
  readonly commands: readonly CompletionCommand[];
}

const MAX_DESCRIPTION = 70;

function completionTree(command: Command, before = ''): CompletionCommand {
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
function allCommands(command: CompletionCommand): CompletionCommand[] {
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

// The completion script for bash.

function bashCompletion(root: CompletionCommand): string {
  const commands = allCommands(root);
  const below = commands.slice(1).map(({ words }) => `'${words}'`);
  const choices = commands.flatMap(({ words, options }) =>
    options.flatMap(({ long, short, value }) =>
      value === undefined ? [] : [{ flags: short === undefined ? [long] : [long, short], words, value }],
    ),
  );
  return `# Completion of ${root.name} for bash: source <(${root.name} completion bash)
_${root.name}() {
  local current=\${COMP_WORDS[COMP_CWORD]} before=\${COMP_WORDS[COMP_CWORD-1]} place='${root.name}' index
  for ((index = 1; index < COMP_CWORD; index++)); do
    case "$place \${COMP_WORDS[index]}" in
      ${below.join(' | ')}) place="$place \${COMP_WORDS[index]}" ;;
    esac
  done
  COMPREPLY=()
  # A flag that takes a value; without choices bash completes files.
  case "$place $before" in
${choices
  .map(({ words, flags, value }) => {
    const patterns = flags.map((flag) => `'${words} ${flag}'`).join(' | ');
    const reply =
      value.choices.length === 0
        ? ''
        : ` mapfile -t COMPREPLY < <(compgen -W '${value.choices.join(' ')}' -- "$current");`;
    return `    ${patterns})${reply} return ;;`;
  })
  .join('\n')}
  esac
  local names='' flags=''
  case "$place" in
${commands
  .map(({ words, options, commands: own }) => {
    const flags = options.flatMap(({ long, short }) => (short === undefined ? [long] : [long, short]));
    return `    '${words}') names='${own.map(({ name }) => name).join(' ')}' flags='${flags.join(' ')}' ;;`;
  })
  .join('\n')}
  esac
  if [[ $current == -* ]]; then mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$current")
  elif [[ -n $names ]]; then mapfile -t COMPREPLY < <(compgen -W "$names" -- "$current")
  fi
}
complete -o default -F _${root.name} ${root.name}
`;
}

// The completion script for zsh.

function zshCompletion(root: CompletionCommand): string {
  const commands = allCommands(root);
  const below = commands.slice(1).map(({ words }) => `'${words}'`);
  return `#compdef ${root.name}
# Completion of ${root.name} for zsh: source <(${root.name} completion zsh), or this file as _${root.name} in a folder of $fpath
_${root.name}() {
  local place='${root.name}' index
  local -a names flags
  for ((index = 2; index < CURRENT; index++)); do
    case "$place \${words[index]}" in
      (${below.join('|')}) place="$place \${words[index]}" ;;
    esac
  done
  # A flag that takes a value.
  case "$place \${words[CURRENT-1]}" in
${commands.flatMap(({ words, options }) => options.flatMap((option) => valueLine(words, option))).join('\n')}
  esac
  case "$place" in
${commands
  .map(({ words, options, commands: own }) => {
    const names = own.map(({ name, description }) => item(name, description));
    const flags = options.flatMap(({ long, short, description }) =>
      [long, ...(short === undefined ? [] : [short])].map((flag) => item(flag, description)),
    );
    return `    ('${words}') names=(${names.join(' ')}) flags=(${flags.join(' ')}) ;;`;
  })
  .join('\n')}
  esac
  if [[ "\${words[CURRENT]}" == -* ]]; then _describe -o flag flags
  elif (( \${#names} )); then _describe command names
  else _files
  fi
}
if [[ "\${funcstack[1]}" == _${root.name} ]]; then _${root.name} "$@"; else compdef _${root.name} ${root.name}; fi
`;
}

function valueLine(words: string, { long, short, value }: CompletionOption): string[] {
  if (value === undefined) return [];
  const patterns = [long, ...(short === undefined ? [] : [short])].map((flag) => `'${words} ${flag}'`);
  const action = value.choices.length === 0 ? '_files' : `compadd -- ${value.choices.map(zshQuoted).join(' ')}`;
  return [`    (${patterns.join('|')}) ${action}; return ;;`];
}

/** A name and what it stands for, as _describe takes them. */
function item(name: string, description: string): string {
  return zshQuoted(`${name.replaceAll(':', '\\:')}:${description.replaceAll('\\', '\\\\').replaceAll(':', '\\:')}`);
}

function zshQuoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

// The completion script for fish.

function fishCompletion(root: CompletionCommand): string {
  const commands = allCommands(root);
  const below = commands.slice(1).map(({ words }) => fishQuoted(words));
  return `# Completion of ${root.name} for fish: ${root.name} completion fish | source
function __${root.name}_place
    set -l place ${root.name}
    for word in (commandline -opc)[2..-1]
        switch "$place $word"
            case ${below.join(' ')}
                set place "$place $word"
        end
    end
    echo $place
end
function __${root.name}_at
    test (__${root.name}_place) = "$argv"
end
${commands.flatMap((command) => fishLines(root.name, command)).join('\n')}
`;
}

function fishLines(program: string, { words, options, commands }: CompletionCommand): string[] {
  const at = `complete -c ${program} -n ${fishQuoted(`__${program}_at ${words}`)}`;
  return [
    ...commands.map(({ name, description }) => `${at} -f -a ${fishQuoted(name)} -d ${fishQuoted(description)}`),
    ...options.map((option) => `${at} ${flagsOf(option)}${valueOf(option)} -d ${fishQuoted(option.description)}`),
  ];
}

function flagsOf({ long, short }: CompletionOption): string {
  return `-l ${long.slice(2)}${short === undefined ? '' : ` -s ${short.slice(1)}`}`;
}

/** -x: a value that is no file; -r: any value, files are offered. */
function valueOf({ value }: CompletionOption): string {
  if (value === undefined) return '';
  return value.choices.length === 0 ? ' -r' : ` -x -a ${fishQuoted(value.choices.join(' '))}`;
}

function fishQuoted(text: string): string {
  return `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`;
}
