// The completion script for zsh.
import { allCommands, type CompletionCommand, type CompletionOption } from './completion-tree.ts';

export function zshCompletion(root: CompletionCommand): string {
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
  const action = value.choices.length === 0 ? '_files' : `compadd -- ${value.choices.map(quoted).join(' ')}`;
  return [`    (${patterns.join('|')}) ${action}; return ;;`];
}

/** A name and what it stands for, as _describe takes them. */
function item(name: string, description: string): string {
  return quoted(`${name.replaceAll(':', '\\:')}:${description.replaceAll('\\', '\\\\').replaceAll(':', '\\:')}`);
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
